"""What a person approves: the resolved configuration of a run with its caps, and its brief.

`config.py` has the `RunConfig`, and the `StepConfig` of a plan's step; `parts.py` what they are made of; `run_cap.py`
the five caps; `brief.py` the texts; `digest.py` the hash over both that an approval names. What must hold: `approval`
decides everything that is in a configuration once, and no later code decides again. A field that is added has a default
that leaves the digests of older configurations as they were.
"""
