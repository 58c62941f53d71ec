"""Ava: the MCP server, its approvals, budgets, run manager and agent loop."""

MODULE_ARGS = ("-P", "-m", "ava_server")
"""Arguments with which Python runs Ava. With `-P`, it imports nothing from the folder in which it is started."""
