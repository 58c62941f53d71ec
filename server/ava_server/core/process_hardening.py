"""Keys stand in the memory of a server, and in the environment that it was started with: both are its own alone."""

from __future__ import annotations

from contextlib import suppress


def hide() -> None:
    """Keep other processes of the same user from reading them; called first thing, also where no command will run."""
    from ava_roles.sandbox.linux import NotOnThisSystem, hide_from_others

    with suppress(NotOnThisSystem):  # elsewhere no command runs
        hide_from_others()
