"""The dashboard of `ava status` (extra `dashboard`): what `cli/status` shows, live, and what a person decides there.

`live.py` renders the dashboard and `detail.py` one run and its log. `app.py` keeps it up to date on a terminal with
textual, through the terminal driver in `driver.py`; `screens.py` has the screens that open over it. Nothing else uses
textual. `decisions.py` is the only part that writes: it asks, and carries out the answer through the service.
"""
