"""The built-in tools of subagents, a file for each family.

The seam is `ava_roles.tool`: each tool is a `Tool` with a `ToolSpec`, and `registry` lists them all. A call uses its
`ToolContext` and nothing else: a tool knows no run, no log and no model. The flags of the spec are the only source of
what a tool can reach: they decide what the proposal shows, whether calls run in parallel, and whether a run may start
without a question.

What must hold: a failure is a `ToolFailed` whose text says what the model can do; any other exception is a fault.
Blocking work runs in threads. A tool hides secrets in a whole file or page before it takes part of it. What a file or
a page says is read by `texts/`.
"""
