"""What `reader.py --compare` is made of: sets of questions, ways to rank, and what counts."""
