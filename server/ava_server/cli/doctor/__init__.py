"""`ava doctor`: checks of everything that Ava needs, each with what to do.

`checks.CHECKS` lists those of `service/checks/` and `log.py` in their order, and `command.py` prints what they find. A
failure of one does not end the others. Only `online.py` writes: it asks each provider in a run of its own.
"""
