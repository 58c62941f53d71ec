"""Owners, plans, histories, questions, tools and faults of runs, for tests of what drives them."""
