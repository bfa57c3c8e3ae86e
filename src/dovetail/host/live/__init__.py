"""The host level for real: a daemon that keeps, decides and carries out; its state; and how to talk to it."""
