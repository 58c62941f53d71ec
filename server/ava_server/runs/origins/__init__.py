"""Where the values of a tool call come from, and which of them a person has to allow.

What was read from outside does not decide what a run changes or sends. The seam is `origins.py`: it compares the values
of a call (`call_values.py`) with the texts that a person approved (`approved_texts.py`) and with what the run has read
(`carried_data.py`); `acts.py` says which calls a person is asked about whatever their values are.

What must hold: a call of another server's tool that changes something takes its values from the task, a person's
answers and the sources that its role names, or a person is asked about it, and where nobody can be asked it is refused.
The time that a comparison takes grows with the length of the texts and no faster.
"""
