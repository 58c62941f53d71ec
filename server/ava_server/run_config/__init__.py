"""What a person approves: the resolved configuration of a run with its caps, and its brief.

The seam is `config.RunConfig`, with a `StepConfig` for each step of a plan. `parts.py` has what they are made of,
`run_cap.py` the names and units of the five caps, `brief.py` the texts (task, context, instructions, reason, and what
files of the project say), and `digest.py` the hash over both, which an approval names.

What must hold: `approval` decides everything that is in a configuration once, and no later code decides again. A field
that is added has a default and a row in `digest.py`, so that the digests of older configurations stay as they are.
"""
