"""What the level can be fed: its files, files of other systems, and made-up ones."""
