"""Ava: the MCP server, its approvals, budgets, run manager and agent loop."""

MODULE_ARGS = ("-P", "-m", "ava_server")
"""Arguments with which Python runs Ava. With `-P`, it imports nothing from the folder in which it is started."""
COLLECT_AFTER = 10_000
"""New objects from which on garbage is looked for. Python's 700 cost a tenth of a busy server's time, and a twentieth
of a short command's."""
