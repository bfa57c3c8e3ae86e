"""Measuring: layers on a device, links between hosts; and the files that the results go to."""
