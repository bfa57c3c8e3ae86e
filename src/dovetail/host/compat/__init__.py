"""The older scheduler's decisions, for comparison."""
