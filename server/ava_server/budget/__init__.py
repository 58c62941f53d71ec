"""Budget: the reservation and settlement of model calls, the order of runs that wait for money, and users' limits.

The five caps of a run are in `run_config`. The seam is `caps.reserve`, a pure command of the store, and
`caps.settlement_event`. What must hold: no call is sent whose worst case, with that of a wrap-up after it, does not fit
every cap; what was held is settled once; money is counted in whole micro-USD.
"""
