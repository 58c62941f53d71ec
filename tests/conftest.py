"""Hypothesis profiles: `pytest --hypothesis-profile=long` plays many more and longer schedules (README.md)."""

from hypothesis import settings

settings.register_profile("long", max_examples=250, stateful_step_count=60, deadline=None)
