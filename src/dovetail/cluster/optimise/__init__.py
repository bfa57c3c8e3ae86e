"""Optimisers that policies share: linear programs over classes of alike jobs, and shares that need no solver."""
