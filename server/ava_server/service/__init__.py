"""The six tools for one caller: propose, decide, check, message, cancel, read the log. It knows nothing of MCP.

The seam is `Service.call`, with a tool's name and arguments and a `CallContext`; `tool_registry.TOOLS` is the registry
of the six tools, from which the MCP server, the reference page and the checks of a call are derived; `record.WHEN` says
when the call of each is written, and `access.Asking` who can answer a proposal. What must hold: every call is on the
record, with its arguments redacted, but a poll without news; a user sees only what belongs to them; and a mistake of
the caller is an answer that names one next step, not an exception.
"""
