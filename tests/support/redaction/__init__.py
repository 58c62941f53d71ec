"""Private keys, and where a secret was left, for tests of redaction."""
