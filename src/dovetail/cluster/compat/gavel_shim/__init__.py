"""A folder for the path of old programs: what they import of Gavel by its own name."""
