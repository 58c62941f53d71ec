"""What confines commands here: tried once, in a thread, because trying it takes a moment."""

from __future__ import annotations

import threading
from typing import Literal

ENDS_WITHIN_S = 5.0
"""How long the folder in which it is tried is waited for at the end, so that it is not left behind."""


class Confined:
    """Finds out what confines commands.

    Args:
        mode: The setting `sandbox.mode`.
    """

    def __init__(self, mode: Literal["auto", "none"]) -> None:
        self._mode: Literal["auto", "none"] = mode
        self._found: str | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin to try; a second time does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._try, name="ava-confined", daemon=True)
            self._thread.start()

    def known(self, within_s: float = 0.0) -> str | None:
        """Return the kind of sandbox, or `unavailable: …` with the reason; None where that takes longer."""
        if self._thread is not None:
            self._thread.join(within_s)
        return self._found

    def end(self) -> None:
        """Let what was begun come to its end."""
        self.known(ENDS_WITHIN_S)

    def _try(self) -> None:
        from ava_roles.sandbox.sandbox import Unavailable
        from ava_server.cli.doctor.machine import sandbox

        try:
            found = sandbox(self._mode)
        except OSError as error:  # no room for the folder that it is tried in
            self._found = f"unavailable: it could not be tried ({error.strerror or error})"
            return
        self._found = f"unavailable: {found.why}" if isinstance(found, Unavailable) else found.kind
