"""The HTTP server behind `ava serve --http`: MCP at /mcp, approvals at /approvals, metrics, health.

Seam: `server.serve` runs it; `Authentication` wraps everything behind it, so each request carries a `Token`. Every
token is checked again while its request lasts, every wait has a deadline, every user has a limit, no log line holds a
token, and a user sees only their own runs.
"""
