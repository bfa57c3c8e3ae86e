"""What live services share: the processes of a Ray cluster that carry their work."""
