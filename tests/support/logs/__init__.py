"""Logs of the past, logs that are cut, and writers that are killed, for tests of the log."""
