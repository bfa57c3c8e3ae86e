"""What people know from the schedulers before this one: GSwarm's order of events, and its logs."""
