"""MCP servers and documents by others, for tests of what subagents read."""
