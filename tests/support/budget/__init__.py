"""Runs that only spend, and runs that wait for money, for tests of budgets."""
