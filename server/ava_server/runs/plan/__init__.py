"""A plan at work: it starts the runs of its steps, hands them the results of earlier ones, and ends when they have.

`plan_run.py` drives a plan as the loop drives a run; `plan.py` carries out, as one command of the log, what
`record/plan_moves.py` decides. What must hold: no process starts a run of a plan twice, and after a crash the plan
continues where its log ends. A plan takes no slot and spends nothing itself.
"""
