"""What happened: one append-only, hash-chained, searchable log, and the views that follow from it."""
