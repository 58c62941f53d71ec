"""Keys that expire: a command of the person's own prints the key that counts now (`key_command` of a provider).

Calls at the same time share one run of the command, and its outcome. What it prints is never shown: the error of a
command says how it failed, and the redactor learns each key before it is used.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from ava_server.core.errors import ConfigError
from ava_server.core.own_program import checked_command, run_program

log = logging.getLogger("ava.models")

COMMAND_S = 10.0
"""Seconds that the command may take."""
SHORTEST, LONGEST = 8, 16 * 1024
"""Characters of a key; tokens of Entra and Google have up to a few thousand."""
_KEY = re.compile(rf"[!-~]{{{SHORTEST},{LONGEST}}}")
_FROM_PERSON = ("HOME", "PATH")
_WINDOWS = ("USERPROFILE", "SYSTEMROOT", "APPDATA", "LOCALAPPDATA", "COMSPEC", "PATHEXT", "TEMP")
"""What programs there do not start without."""


class KeyCommandFailed(Exception):
    """Raised when a command gave no key; the text has nothing of what it printed. `again`: it may do better later."""

    def __init__(self, why: str, *, again: bool) -> None:
        super().__init__(why)
        self.again = again


@dataclass(frozen=True)
class _Key:
    text: str
    read_s: float


class KeyCommand:
    """The command of one provider, and the key that it printed last.

    `ttl_s`: seconds for which a key is used. `learn` is told of each key before it is used.
    """

    def __init__(
        self, provider: str, command: tuple[str, ...], ttl_s: int, learn: Callable[[str], None] | None = None
    ) -> None:
        self.command = command
        self.runs = 0
        self._provider = provider
        self._ttl_s = ttl_s
        self._learn = learn
        self._one = anyio.Lock()
        self._ended = 0  # runs that have ended: who waited for one takes its outcome
        self._failed: KeyCommandFailed | None = None
        self._key: _Key | None = None
        self._renewed = ""  # the key that replaced a refused one, until a call was accepted with it

    @property
    def words(self) -> str:
        return " ".join(self.command)

    async def key(self) -> str:
        """Return the key that counts now. Raises KeyCommandFailed: the command gave none."""
        if self._key is not None and time.monotonic() - self._key.read_s < self._ttl_s:
            return self._key.text
        return await self._read()

    async def renew(self, refused: str) -> bool:
        """Run the command because a provider refused this key; return whether there is another one to try.

        The key that came of a refusal is not replaced again before a call was accepted with it: a provider that
        refuses every key gets two of them.
        """
        now = self._key
        if now is None or now.text != refused:  # another call has replaced it meanwhile
            return now is not None
        if refused == self._renewed:
            return False
        try:
            self._renewed = await self._read()
        except KeyCommandFailed as failed:
            log.warning("key_command of %s: %s", self._provider, failed)
            return False
        return self._renewed != refused

    def accepted(self, key: str) -> None:
        if key == self._renewed:
            self._renewed = ""

    def refuse_in(self, project: Path | None, data_root: Path) -> None:
        """Check the command for a run on `project`. Blocking.

        Raises ConfigError: it cannot be used, or others write it or the settings that name it: both lie in `project`.
        """
        try:
            checked_command(self.command, project)
        except ConfigError as error:
            raise ConfigError(f"key_command of {self._provider}: {error}.") from None
        if project is not None and data_root.resolve().is_relative_to(project.resolve()):
            raise ConfigError(
                f"key_command of {self._provider}: it is named in {data_root}, which lies in the project {project},"
                " whose files others write. Move the data root, or give another workspace."
            )

    async def _read(self) -> str:
        """Run the command, or take what a run brought that ended while this call waited."""
        ended = self._ended
        async with self._one:
            if self._ended == ended:
                self._failed = None
                try:
                    self._key = await self._run()
                except KeyCommandFailed as failed:
                    self._failed = failed
                self._ended += 1
            if self._failed is not None:
                raise KeyCommandFailed(str(self._failed), again=self._failed.again)
            assert self._key is not None, "a run that did not fail has brought a key"
            return self._key.text

    async def _run(self) -> _Key:
        began = time.monotonic()
        try:
            command = await anyio.to_thread.run_sync(checked_command, self.command)
        except ConfigError as error:
            raise KeyCommandFailed(str(error), again=False) from None
        self.runs += 1
        try:
            end = await run_program(command, _environment(os.environ), COMMAND_S, most_output=LONGEST + 2)
        except (OSError, ValueError) as error:
            raise KeyCommandFailed(f"it cannot be run: {type(error).__name__}", again=False) from None
        if end.too_much:
            raise KeyCommandFailed(f"it printed more than {LONGEST:,} characters", again=False)
        if end.code is None:
            raise KeyCommandFailed(f"it took longer than {COMMAND_S:.0f} s and was ended", again=True)
        if end.code != 0:
            raise KeyCommandFailed(f"it ended with {end.code}", again=True)
        text = _key_in(end.output)
        if self._learn is not None:
            await anyio.to_thread.run_sync(self._learn, text)
        return _Key(text, began)


def _key_in(output: bytes) -> str:
    """Return the one line that a command printed. Raises KeyCommandFailed: it is no key."""
    text = output.decode("ascii", "replace").strip("\r\n")
    if not text.strip():
        raise KeyCommandFailed("it printed nothing", again=False)
    if "\n" in text or "\r" in text:
        raise KeyCommandFailed("it printed more than one line, and a key is one", again=False)
    if not _KEY.fullmatch(text):
        raise KeyCommandFailed("what it printed is not a key: one line, 8 characters or more, no spaces", again=False)
    return text


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the command: the person's HOME and PATH, so none with a key."""
    names = (*_FROM_PERSON, *_WINDOWS) if sys.platform == "win32" else _FROM_PERSON
    return {name: env[name] for name in names if name in env}
