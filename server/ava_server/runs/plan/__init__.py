"""A plan at work: it starts the runs of its steps, hands them the results of earlier ones, and ends when they have.

The seam is `plan_run.py`, which drives a plan as the loop drives a run. `plan.py` carries out, as one command of the
log, what `runs/record/plan_moves.py` decides; `runs/turn/reuse.py` says which runs of an earlier plan count again.
What must hold: no process starts a run of a plan twice, and after a crash the plan continues where its log ends. A plan
takes no slot and spends nothing itself.
"""
