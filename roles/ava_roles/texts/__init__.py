"""Texts that were extracted from files once: the store of them (`store.py`), and how runs use it (`kept.py`)."""
