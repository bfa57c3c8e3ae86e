"""What functions give back: a recorded run, several side by side, as tables and charts."""
