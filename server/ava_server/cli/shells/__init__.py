"""What shells are told of completion, a script each."""
