"""Tools of other MCP servers: what is configured, what a server offers, and one connection to it for each run."""
