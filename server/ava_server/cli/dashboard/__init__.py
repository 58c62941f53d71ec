"""What `ava status` shows.

`overview.py` looks at the data root without changing it and returns one `Overview`; `health.py` judges it. `page.py`
renders both as lines of rich text, for a pipe and for a terminal, and `app.py` keeps these lines up to date on a
terminal with textual, through the terminal driver in `driver.py`. Nothing else imports textual: a screen that is shown
once starts without it.

What others wrote reaches a line only through `page.joined`, which removes what could steer a terminal.
"""
