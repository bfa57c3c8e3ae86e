"""Pictures and pages from journals, and from nothing else: Gantt, distributions, utilisation, Perfetto, one-file HTML."""
