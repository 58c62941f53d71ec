"""Fetching public pages, and nothing else."""
