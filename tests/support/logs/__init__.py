"""Stores, histories, mirrors and searches; logs that are old, cut, changed or on Postgres, for tests of the log."""
