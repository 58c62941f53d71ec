"""A model of the whole system that plays random steps, for test_schedules and test_lifecycle."""
