"""Language models: their shape from a public configuration, prefill and decode costed apart, one partition for both."""
