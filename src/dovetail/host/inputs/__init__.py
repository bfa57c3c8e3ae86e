"""What the level reads: request files, parameters, generated workloads, measured curves."""
