"""Attacks on a sandbox, and processes in one, for tests of commands and files."""
