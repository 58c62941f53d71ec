"""Engines that deliver runs, for tests: real servers of NATS and Temporal, and one in memory that does all wrong."""
