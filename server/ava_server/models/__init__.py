"""Models: one Protocol, and an adapter for each wire."""
