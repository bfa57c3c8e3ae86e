"""Pictures as inline SVG: charts, schedules, jobs."""
