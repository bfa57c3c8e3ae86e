"""Requests that grow: what the end of a node may add, what it adds to one request, and when."""
