"""Roles, the tools of subagents, and their confinement.

`Catalog` reads role files and `parse_role` makes a `Role` of one. `Tool` and `ToolSpec` (in `tool`) are the seam to the
agent loop. The packages: `tools` implements the built-in tools, `mcp_client` uses those of other MCP servers, `texts`
turns bytes into text, `worktree` holds a coder's work, `sandbox` confines commands and paths, `net` reaches the public
web. Nothing here knows the server, the log or a model. What comes from a file, a page or another program is untrusted
data, cleaned before a model or a person sees it.
"""

BUILT_IN_SOURCE = "built in"
"""Where a role comes from that is shipped with Ava; the source of any other is its file."""
BUILT_IN = ("web_crawler", "code_reviewer", "data_extractor", "researcher", "coder", "custom")
"""The roles that are shipped with Ava; no other role has such a name."""
