"""The tools that a subagent may be given."""
