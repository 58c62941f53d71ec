"""The dashboard of `ava status` (extra `dashboard`): what `--once` shows, live, and what a person decides there.

Only `app.py`, `screens.py` and `driver.py` use textual; `live.py` renders. Only `decisions.py` writes: it asks, and
carries out the answer through the service.
"""
