"""What a run's owner writes and measures: its log under the claim (`log.py`), and its clock (`clock.py`).

What must hold: the log and the history that is folded from it never differ, and nothing is written under a claim that
was lost.
"""
