"""What a round is made of: the table of active jobs, who is owed what, leases and devices."""
