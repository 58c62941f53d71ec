"""What the log says of a run: commands that write it, and folds that read it.

`lifecycle.py` has the table of all moves of a run; the commands in `claims.py` take, pause and resume runs, those in
`endings.py` end them. `history.py` collects a run's entries, and requests are built only from it, so a resumed run
works like a new one; `outline.py`, `invalid_answers.py` and `reported_tokens.py` are parts of that. Of plans,
`plan_state.py` folds the entries, `plan_moves.py` decides what is next, and `plan_result.py` makes the result.
`submit.py` takes what a subagent hands over; `result.py`, `quotes.py`, `sources.py`, `changes.py` (with a coder's
commit message) and `costs.py` say what a run produced and what it cost. `money_holders.py` says who holds the money
that a run waits for.

What must hold, and what lint-imports checks of its own imports: this room opens no file and no socket, waits for
nothing and does not know the store. A command decides by the `View` that it is given, inside the transaction.
"""
