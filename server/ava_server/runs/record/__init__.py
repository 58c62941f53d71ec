"""What the log says of a run: commands that write it, and folds that read it.

`lifecycle.py` has the table of all moves of a run; the commands in `claims.py` take, pause and resume runs, those in
`endings.py` end them. `history.py` collects a run's entries, and requests are built only from it, so a resumed run
works like a new one. `plan_moves.py` and `plan_state.py` are the same for plans; `result.py`, `sources.py`,
`quotes.py`, `changes.py` and `costs.py` say what a run has brought and cost.

What must hold, and what lint-imports checks: this room opens no file and no socket, waits for nothing and does not know
the store. A command decides by the `View` that it is given, inside the transaction.
"""
