"""The dashboard of `ava status` (extra `dashboard`): what `cli/status` shows, live, and what a person decides there.

Nothing else uses textual. `decisions.py` is the only part that writes: it asks, and carries out the answer through the
service.
"""
