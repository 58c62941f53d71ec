"""The tools of other MCP servers: configuration, discovery, and one set of servers per run.

The seam is `ServerEntry` and `OfferedTool`; `McpTool` makes a `Tool` of the latter. A tool is approved with its
definition, and a tool that has changed since is refused. A server is never Ava itself. Whatever a server sends is
bounded and cleaned, its requests are refused, and its own words reach no error message. A stdio server runs confined,
and ends with its run.
"""
