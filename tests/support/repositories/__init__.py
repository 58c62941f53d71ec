"""Checkouts, and coders' work on them, for tests of worktrees and coders."""
