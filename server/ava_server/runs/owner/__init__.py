"""Decides which process has a run: it claims, takes over, cancels and resumes runs, and shows what they are doing.

`manager.py` claims runs and owns their tasks, as far as `mode.py` lets this kind of process; `control.py` ends and
resumes runs in their owner's place (who may do so is decided in `service/access.py`). `workers.py` has the workers to
which a manager leaves runs, `offers.py` what an engine has given to a worker, `run_notes.py` and `blockers.py` why a
run is not taken, and `activities.py` what runs are doing, for display only.

The seam is `manager.Manager`. Under `background`, a server leaves runs to a worker: hosts kill servers within 10 to
100 ms, so a server that handed a run over at its end would lose the call in progress, and a fault in a run would end
the server.

What must hold: one instance owns a run at a time. A process that was stopped may have lost its runs without knowing it,
so it checks that others see its lock or lease before it claims; and it takes a run over only while its owner is gone.
"""
