"""What pages and pictures tell, gathered from a journal in one pass."""
