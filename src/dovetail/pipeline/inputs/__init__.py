"""What the level reads: models, device types, devices and links, as one validated problem."""
