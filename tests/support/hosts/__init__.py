"""Hosts, as profiles and as real programs, and the person at one, for tests of what hosts do."""
