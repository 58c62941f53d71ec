"""Prices of tokens, in integers: nano-USD per token, micro-USD per call; rounded up, never guessed."""
