"""MCP hosts: where each keeps its configuration, what Ava's entry looks like there, and what to tell its user."""
