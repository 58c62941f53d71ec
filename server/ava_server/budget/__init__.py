"""Budget: the configuration of a run with its caps, the reservation and settlement of model calls, and users' limits.

`run_config.CAPS` are the five caps of a run. The seam is `caps.reserve`, a pure command of the store, and
`caps.settlement_event`. What must hold: no call is sent whose worst case, with that of a wrap-up after it, does not fit
every cap; what was held is settled once; money is counted in whole micro-USD.
"""
