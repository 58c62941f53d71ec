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
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread

from ava_server.core.errors import ConfigError
from ava_server.core.own_program import OwnCommand, checked_command, run_program

log = logging.getLogger("ava.models")

COMMAND_S = 10.0
"""Seconds that the command may take."""
PAUSE_S = 5.0
"""Seconds after a failure in which the command is not run again."""
SHORTEST, LONGEST = 8, 16 * 1024
"""Characters of a key; tokens of Entra and Google have up to a few thousand."""
_KEY = re.compile(rf"[!-~]{{{SHORTEST},{LONGEST}}}")
_FROM_PERSON = ("HOME",)
_WINDOWS = ("USERPROFILE", "SYSTEMROOT", "APPDATA", "LOCALAPPDATA", "COMSPEC", "PATHEXT", "TEMP")
"""What programs there do not start without."""


class KeyCommandFailed(Exception):
    """Raised when a command gave no key; the text has nothing of what it printed. `again`: it may do better later."""

    def __init__(self, why: str, *, again: bool) -> None:
        super().__init__(why)
        self.again = again


@dataclass(frozen=True)
class _Key:
    text: str = field(repr=False)
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
        self._ended: int = 0  # runs that have ended: who waited for one takes its outcome
        self._failed: KeyCommandFailed | None = None
        self._failed_s = 0.0
        self._key: _Key | None = None
        self._projects: frozenset[Path] = frozenset()  # those of all runs that use it
        self._program: str | None = None  # the full path that was checked first: no other one is run
        self._renewed = ""  # the key that replaced a refused one, until a call was accepted with it

    @property
    def words(self) -> str:
        return " ".join(self.command)

    async def key(self) -> str:
        """Return the current key. Raises KeyCommandFailed if the command gave none and there is no older one."""
        if self._key is not None and time.monotonic() - self._key.read_s < self._ttl_s:
            return self._key.text
        if self._failed is not None and time.monotonic() - self._failed_s < PAUSE_S:
            return self._old_key(self._failed)
        try:
            return await self._read()
        except KeyCommandFailed as failed:
            return self._old_key(failed)

    def _old_key(self, failed: KeyCommandFailed) -> str:
        """Return the key whose time is over, which may still count: only a provider refuses it."""
        if self._key is None:
            raise KeyCommandFailed(str(failed), again=failed.again)
        log.warning("key_command of %s: %s; the key before is used", self._provider, failed)
        return self._key.text

    async def renew(self, refused: str) -> bool:
        """Run the command because a provider refused this key; return whether there is another one to try.

        The key that came of a refusal is not replaced again before a call was accepted with it: a provider that
        refuses every key gets two of them.
        """
        now = self._key
        if now is None:
            return False
        if now.text != refused:  # another call has replaced it meanwhile
            return True
        if refused == self._renewed:
            return False
        try:
            self._renewed = await self._read()  # this replaces `_key` too
        except KeyCommandFailed as failed:
            log.warning("key_command of %s: %s", self._provider, failed)
            self._forget(refused, failed)
            return False
        if self._renewed != refused:
            return True
        self._renewed = ""
        self._forget(refused, KeyCommandFailed("it printed a key again that was refused", again=True))
        return False

    def _forget(self, refused: str, failed: KeyCommandFailed) -> None:
        if self._key is not None and self._key.text == refused:
            self._key = None
        self._failed, self._failed_s = failed, time.monotonic()

    def accepted(self, key: str) -> None:
        if key == self._renewed:
            self._renewed = ""

    def checked(self, project: Path | None, data_root: Path) -> tuple[str, ...]:
        """Return the command with the full path of its program, checked for a run on `project`. Blocking.

        `project` is remembered: later commands must not lie in it either. Raises ConfigError if the command cannot be
        used, or if it, or the data root whose settings name it, lies in a project, where others can write.
        """
        projects = self._projects if project is None else self._projects | {project}
        try:
            found = self._check(projects)
        except (ConfigError, OSError) as error:
            raise ConfigError(f"key_command of {self._provider}: {error}.") from None
        if project is not None and data_root.resolve().is_relative_to(project.resolve()):
            raise ConfigError(
                f"key_command of {self._provider}: it is named in {data_root}, which lies in the project {project},"
                " whose files others write. Move the data root, or give another workspace."
            )
        self._projects = projects
        return found.argv

    def _check(self, projects: frozenset[Path]) -> OwnCommand:
        found = checked_command((self._program or self.command[0], *self.command[1:]), projects)
        self._program = found.argv[0]
        return found

    async def _read(self) -> str:
        """Run the command, or take what a run brought that ended while this call waited."""
        ended = self._ended
        async with self._one:
            if self._ended == ended:
                self._failed = None
                try:
                    self._key = await self._run()
                except KeyCommandFailed as failed:
                    self._failed, self._failed_s = failed, time.monotonic()
                self._ended += 1
            if self._failed is not None:
                raise KeyCommandFailed(str(self._failed), again=self._failed.again)
            assert self._key is not None, "a run that did not fail has brought a key"
            return self._key.text

    async def _run(self) -> _Key:
        began = time.monotonic()
        try:
            with anyio.fail_after(COMMAND_S):
                command = await anyio.to_thread.run_sync(self._check, self._projects, abandon_on_cancel=True)
        except ConfigError as error:
            raise KeyCommandFailed(str(error), again=False) from None
        except TimeoutError:
            raise KeyCommandFailed(f"its folders did not answer within {COMMAND_S:.0f} s", again=True) from None
        except (OSError, RuntimeError) as error:
            raise KeyCommandFailed(f"it cannot be checked: {type(error).__name__}", again=True) from None
        self.runs += 1
        environment = {**_environment(os.environ), "PATH": command.path}
        try:
            end = await run_program(command.argv, environment, COMMAND_S, most_output=LONGEST + 2)
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
    """Return the one line that a command printed. Raises KeyCommandFailed if it is not a key."""
    text = output.decode("ascii", "replace").strip("\r\n")
    if not text.strip():
        raise KeyCommandFailed("it printed nothing", again=False)
    if "\n" in text or "\r" in text:
        raise KeyCommandFailed("it printed more than one line, and a key is one", again=False)
    if not _KEY.fullmatch(text):
        raise KeyCommandFailed("what it printed is not a key: one line, 8 characters or more, no spaces", again=False)
    return text


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the command: the person's HOME, so none with a key."""
    names = (*_FROM_PERSON, *_WINDOWS) if sys.platform == "win32" else _FROM_PERSON
    return {name: env[name] for name in names if name in env}
