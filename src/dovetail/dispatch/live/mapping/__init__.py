"""A function over a dataset that is larger than memory: shards in, shards out; a killed one is gone on with."""
