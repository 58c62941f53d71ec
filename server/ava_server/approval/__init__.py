"""From a request to a decision."""
