"""`ava status` printed once: what waits, runs and has ended lately, what is left of today's money, and Ava's health.

`overview.py` looks at the data root without changing it and returns one `Overview`; `health.py` judges it; `page.py`
renders both as lines of rich text. The dashboard of the extra shows the same, live.

What others wrote reaches a line only through `page.joined`, which removes what could steer a terminal.
"""
