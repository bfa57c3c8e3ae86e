"""What live services share: HTTP on loopback with a token, and the processes of a Ray cluster that carry work."""
