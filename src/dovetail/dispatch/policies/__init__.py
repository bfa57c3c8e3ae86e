"""Ways to cut a batch into chunks, one per file."""
