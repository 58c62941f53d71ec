"""`ava eval run`: a suite of cases, done by Ava as one plan under one cap, and scored by pydantic-evals.

An extra: nothing imports it but `cli/eval.py`, by `ava_extras.load`. What was done and paid is only in the log: each
run has a `task_id` that names suite, round, case and try (`cells.py`). So a suite that was interrupted continues there,
and a changed check is applied to the old answers without a call. What must hold: nothing starts that was not in the
one approval, and the money of a result is the sum of its runs in the log.
"""
