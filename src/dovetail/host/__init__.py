"""The host level: programs whose threads can be changed, co-scheduled on the cores of one machine."""
