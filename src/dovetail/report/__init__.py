"""Pictures and pages from journals and nothing else: Gantt, distributions, utilisation, Perfetto, one-file HTML."""
