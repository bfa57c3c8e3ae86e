"""The side of the training process: leases for loops of all kinds, and how to go on where another process stopped."""
