"""Ava: the MCP server, its approvals, budgets, run manager and agent loop."""

MODULE_ARGS = ("-P", "-m", "ava_server")
"""Arguments with which Python runs Ava. With `-P`, it imports nothing from the folder in which it is started."""
COLLECT_AFTER = 10_000
"""New objects from which on garbage is looked for. Python's 700 cost a tenth of a busy server's time, and a twentieth
of a short command's."""
SWITCH_S = 0.0005
"""Seconds after which a thread that computes gives way to another. A thread that hides secrets in a long text made all
runs of its process wait for Python's 5 ms at each of their steps, and take three times as long."""
