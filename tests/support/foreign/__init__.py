"""MCP servers, documents and attacks by others, for tests of what subagents read."""
