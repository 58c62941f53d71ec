"""Runs: one run of a subagent, from its claim to its end, and the plan that starts several of them.

Each room is one part of it. A room imports only rooms to its right:

    owner > plan > turn > origins > asking | coder > journal > record

`owner` decides which process has a run; `turn/loop.py` is the middle: reserve, call the model, run tools. `record` is
what the log says of a run, as commands and folds over the entries that they are given; `record/lifecycle.py` has the
table of all moves of a run.

The seams are `turn.setup.RunSetup`, which makes what a run works with from the `RunResources` of a process, and the
log: all state of a run follows from its entries, so any process can continue it.

What must hold: `TRANSITIONS` has every way in which a run may move. One instance owns a run at a time. A request can be
rebuilt from the log byte for byte. A run ends once, with a result, whatever ended it. Only a person's own answer raises
a cap.
"""
