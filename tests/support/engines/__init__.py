"""Engines that deliver runs, for tests: a real NATS server, and one in memory that does everything wrong."""
