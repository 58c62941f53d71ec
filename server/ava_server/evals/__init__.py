"""Cases, and recorded runs that are run again without a model: what a change of a role, a prompt or the code changes.

`case.py` has the format of a case and its checks, and `recording.py` what is kept of a run, and a case that is made of
it. `replay.py` drives the loop of `runs` on a recording, in a log of its own in a temporary folder: answers and the
results of tools come from the recording. `tape_setup.py` is `runs.turn.setup.RunSetup` with the parts that a run opens
or calls taken from the recording (`tape.py`); there is no other preparation. What must hold: a replay calls no model
and no tool, and writes nothing into a data root; and a case has a check that an empty answer fails.
"""
