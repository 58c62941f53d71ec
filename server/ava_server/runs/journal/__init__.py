"""What a run's owner writes and measures.

The seams are `log.RunLog`, which writes under the claim and folds what it has written into the history, and
`clock.RunClock`, the time that a run has been active. What must hold: the log and the history never differ, and nothing
is written under a claim that was lost.
"""
