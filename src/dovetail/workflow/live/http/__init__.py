"""A service of workflows on HTTP: its own API, OpenAI's, that of the older model server, and pages about itself."""
