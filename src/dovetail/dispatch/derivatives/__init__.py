"""Derivatives of a batched function, chunk by chunk over the devices."""
