"""What `ava status` shows, and what a person decides there.

`overview.py` looks at the data root without changing it and returns one `Overview`; `health.py` judges it. `page.py`
renders everything once as lines of rich text, `live.py` the dashboard, and `detail.py` one run and its log. `app.py`
keeps the dashboard up to date on a terminal with textual, through the terminal driver in `driver.py`; `screens.py` has
the screens that open over it. Nothing else imports textual: a screen that is shown once starts without it.
`decisions.py` is the only part that writes: it asks, and carries out the answer through the service.

What others wrote reaches a line only through `page.joined`, which removes what could steer a terminal.
"""
