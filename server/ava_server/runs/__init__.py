"""Runs: the manager that claims them, the loop that drives one, and the life cycle that says what may happen to one.

The seams are `setup.RunSetup`, which makes what a run works with from the `RunResources` of a process, and the log: all
state of a run follows from its entries, so any process can go on with it. What must hold:
`lifecycle.TRANSITIONS` has every way in which a run may move; one instance owns a run at a time; a request can be
rebuilt from the log byte for byte; a run ends once, with a result, whatever ended it.
"""
