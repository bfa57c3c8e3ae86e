"""Tenants at work: who is admitted, who has room under a quota, whose turn it is, and what each of them got."""
