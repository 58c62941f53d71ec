"""Everything that can happen in a log, played once, for test_event_coverage."""
