"""The built-in tools of subagents.

The seam is `ava_roles.tool`: each tool is a `Tool` with a `ToolSpec`, and `registry` lists them all. A call uses its
`ToolContext` and nothing else: a tool knows no run, no log and no model. The flags of the spec are the only source of
what a tool can reach. A failure is a `ToolFailed` whose text says what the model can do; blocking work runs in threads;
a tool hides secrets in a text before it cuts the text.
"""
