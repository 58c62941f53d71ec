"""The six tools for one caller, in words of the domain. It knows nothing of MCP."""
