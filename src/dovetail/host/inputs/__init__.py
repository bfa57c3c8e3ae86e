"""What the level reads: request files, parameters, generated workloads."""
