"""Runs: the manager, the loop and the life cycle."""
