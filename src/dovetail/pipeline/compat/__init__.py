"""The older system's command and option names."""
