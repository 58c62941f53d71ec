"""What every other package may use: errors, ids, private files, the data root, threads."""
