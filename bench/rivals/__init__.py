"""Other ways to serve, for comparison."""
