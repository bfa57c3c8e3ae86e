"""What a run is given: batches, devices with their curves, functions by name."""
