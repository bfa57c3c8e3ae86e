"""Files: what users give, read and checked, and what is written."""
