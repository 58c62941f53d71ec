"""A browser's side of the pages and the card, for tests of the web."""
