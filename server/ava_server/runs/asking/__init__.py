"""A run asks a person: for more money, tokens or time, for an answer, or whether it may make a call. Then it waits.

`question_kinds.py` says for each kind of question how it is shown and answered, `pending_questions.py` records the
answers; `extension.py` and `questions.py` ask, and `look_alikes.py` points out letters that imitate others. The seam is
`KINDS`: a new kind of question is a row there. What must hold: a run that asks holds no slot and its clock stands
still; only a person's own answer raises a cap, once, and only to what was shown or below.
"""
