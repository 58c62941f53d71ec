"""Helpers of the tests of runs that another coding agent does."""
