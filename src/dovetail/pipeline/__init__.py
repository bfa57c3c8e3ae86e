"""Pipeline level: contiguous layers of a model over a chain of unlike devices."""
