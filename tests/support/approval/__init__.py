"""Proposals, past runs and people's answers, for tests of approvals."""
