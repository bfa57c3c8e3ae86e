"""The one loop: on virtual time, on wall-clock time, and over a recorded run again."""
