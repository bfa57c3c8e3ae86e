"""The exact search for the best chain of stages, and what it is built from."""
