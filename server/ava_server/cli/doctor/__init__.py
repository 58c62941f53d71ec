"""`ava doctor`: checks of everything that Ava needs, each with what to do.

A check takes a `Setup` and yields `Finding`s; `checks.CHECKS` lists all of them in their order, and `command.py` prints
what they find. A check creates nothing and takes no lock, and its failure does not end the others. Only `online.py`
writes: it asks each provider in a run of its own.
"""
