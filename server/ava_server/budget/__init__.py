"""Budget: the reservation and settlement of model calls, the order of runs that wait for money, and users' limits.

`caps.py` holds and settles money, `money_line.py` says whose turn it is, `held_words.py` says what is held. The five
caps of a run are in `run_config`. The seam is `caps.reserve`, a pure command of the store, and
`caps.settlement_event`. What must hold: no call is sent whose worst case does not fit every cap, with that of the
wrap-up that may follow it; what was held is settled once; money is counted in whole micro-USD.
"""
