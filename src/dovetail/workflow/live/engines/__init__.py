"""Engines: who carries workers. Processes of this machine, or actors on the nodes of a Ray cluster."""
