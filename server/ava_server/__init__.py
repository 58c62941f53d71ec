"""Ava: the MCP server, its approvals, budgets, run manager and agent loop."""
