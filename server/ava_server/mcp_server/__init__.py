"""The MCP protocol."""
