"""Runs: the manager that claims them, the loop that drives one, and the life cycle that says what may happen to one.

`loop.py` is the middle: reserve, call the model, run tools. `history.py` collects a run's entries, and requests are
built only from it, so a resumed run works like a new one. `reservation.py` makes a call fit its caps step by step, and
`model_call.py` makes calls and settles them; `first_call.py` refuses a proposal whose caps buy no work.

`lifecycle.py` has the table of all moves of a run; the commands in `claims.py` take, pause and resume runs, and those
in `endings.py` end them. `manager.py` claims runs and owns their tasks, as far as `mode.py` lets this kind of process;
`activities.py` shows what they are doing, for display only.

`extension.py` and `questions.py` have a run ask a person, and pause it. `question_kinds.py` says for each kind of
question how it is shown and answered, and `pending_questions.py` records the answers. `origins.py` says which values of
a call a person has to allow, because they come from what was read.

The seams are `setup.RunSetup`, which makes what a run works with from the `RunResources` of a process, and the log: all
state of a run follows from its entries, so any process can continue it. Under `background`, a server leaves runs to a
worker (`mode.py`): hosts kill servers within 10 to 100 ms, so a server that handed a run over at its end would lose the
call in progress, and a fault in a run would end the server.

What must hold: `lifecycle.TRANSITIONS` has every way in which a run may move. One instance owns a run at a time; a
process that was stopped may have lost its runs without knowing it, so it checks that others see its lock or lease
before it claims, and that it owns the run right before a request leaves. A request can be rebuilt from the log byte for
byte. A run ends once, with a result, whatever ended it. Only a person's own answer raises a cap.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path


@cache
def prompts(name: str) -> Mapping[str, str]:
    """Return the prompts in a TOML file of this folder, such as `planning`, by their names in it."""
    stored = tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text("utf-8"))
    return {key: str(text).strip() for key, text in stored.items()}
