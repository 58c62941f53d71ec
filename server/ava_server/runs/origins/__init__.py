"""Where the values of a tool call come from, and which of them a person has to allow.

What was read from outside does not decide what a run changes or sends. The seam is `origins.py`: it compares the values
of a call (`call_values.py`) with the texts that a person approved (`approved_texts.py`) and with what the run has read
(`carried_data.py`). What must hold: a value without an approved origin is asked of a person, never let through, and no
text takes much longer to compare than its length.
"""
