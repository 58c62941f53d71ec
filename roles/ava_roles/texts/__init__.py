"""Texts that were extracted from files once: the store that keeps them, and finds passages in them."""
