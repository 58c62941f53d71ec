"""The HTTP server behind `ava serve --http`: MCP at /mcp, approvals at /approvals, metrics, health.

Seam: `server.serve` runs it; `Authentication` wraps everything behind it, so each request carries a `Token`.
`sessions.py` passes a request of another server's session on to that server, and to no address that a request names.

What must hold: every token is checked again while its request lasts, every wait has a deadline, every user has a limit,
no log line holds a token, and a user sees only their own runs. Metric labels hold no text from a person or a model.
"""
