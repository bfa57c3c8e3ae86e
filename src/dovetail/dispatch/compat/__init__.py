"""Schedulers under the names, options and files that their users know."""
