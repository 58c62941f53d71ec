"""The texts of one data root: opens their store, replaces a damaged one, and works without one where it must."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TypeVar, cast

from ava_roles.errors import FolderReplaced, NotThere, ToolFailed
from ava_roles.sandbox.path_access import FileMark
from ava_roles.sandbox.paths import Root
from ava_roles.texts.store import (
    MADE_AGAIN,
    KeptFile,
    TextStore,
    is_damage,
    primary_code,
    remove_store,
    without_device,
)
from ava_roles.threads import run_sync

log = logging.getLogger("ava.texts")
_Result = TypeVar("_Result")
PASSING_BYTES = 200_000_000
"""The most texts that one call keeps in memory, where the file cannot be used."""
CHECKED_FILES = 2_000
"""How many files the keeper of the data root looks at in a round, which takes it some tenths of a second."""
_DAY_US = 86_400_000_000


class KeptTexts:
    """The texts that one data root keeps of files, opened when a run first needs them; without a path, none are kept.

    `most_bytes` 0 keeps none either. Where they cannot be opened or written (a full disk), a run reads files without
    them, and the log says so once.
    """

    def __init__(self, path: Path | None = None, most_bytes: int = 0) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._store: TextStore | None = None
        self._said = False
        self._checking = threading.Lock()

    async def use(self, work: Callable[[TextStore], Awaitable[_Result]]) -> _Result:
        """Do `work` with the store, and return its result.

        If the store is damaged, the work is done again with a new one; if there is none, with a store in memory.
        """
        is_usable = True
        for _try in range(2):
            store = None
            if is_usable:
                store = await run_sync(self._opened_or_none)
            if store is not None:
                try:
                    return await work(store)
                except* sqlite3.Error as errors:
                    is_usable = await run_sync(self._made_anew, store, _first_of(errors))
        in_memory = TextStore(None, PASSING_BYTES)
        try:
            return await work(in_memory)
        finally:
            in_memory.close()

    def _opened_or_none(self) -> TextStore | None:
        with self._lock:
            if self._path is None or not self._most_bytes:
                return None
            if self._store is not None and not self._store.is_in_place():
                self._close()
            if self._store is None:
                try:
                    self._store = TextStore(self._path, self._most_bytes)
                except (OSError, sqlite3.Error) as error:
                    self._say(error)
            return self._store

    def _made_anew(self, store: TextStore, error: BaseException) -> bool:
        """Tell whether a store that failed is replaced, as a damaged one is; say why it failed."""
        with self._lock:
            if self._store is not store or self._path is None:
                return True  # another call has done it
            if not is_damage(error):
                self._say(error)
                return False
            log.warning(MADE_AGAIN, self._path, error)
            self._close()
            remove_store(self._path)
            return True

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _say(self, error: BaseException) -> None:
        if not self._said:
            log.warning("%s cannot be used (%s): files are read anew for each question", self._path, error)
            self._said = True

    def erase_run(self, run: str) -> int:
        """Erase the texts that only this run read, and return how many; as `erase_all` does."""
        return self._removed(lambda store: store.erase_run(run))

    def erase_all(self) -> int:
        """Erase all texts; return how many. Raises OSError, sqlite3.Error: they are still there."""
        return self._removed(TextStore.erase_all)

    def expire(self, days: int) -> None:
        """Remove what no run used for so many days, and what does not fit any more; a failure is tried again later."""
        try:
            self._removed(lambda store: store.expire(time.time_ns() // 1000 - days * _DAY_US))
        except (OSError, sqlite3.Error) as error:
            log.warning("old texts in %s were not removed (%s)", self._path, error)

    def check_files(self, most: int = CHECKED_FILES) -> int:
        """Forget the texts of files that are gone or have changed, of the next `most` files. Blocks.

        Returns how many files these were. A folder that cannot be opened, or is another one now, as where a share is
        not mounted, says nothing about its files. A share whose server does not answer may block this for long: another
        call does nothing meanwhile. A failure is tried again later.
        """
        if not self._checking.acquire(blocking=False):
            return 0
        try:
            return self._removed(lambda store: store.forget(_gone(store.next_files(most))))
        except (OSError, sqlite3.Error) as error:
            log.warning("texts in %s whose files are gone were not removed (%s)", self._path, error)
            return 0
        finally:
            self._checking.release()

    def _removed(self, remove: Callable[[TextStore], int]) -> int:
        """Remove texts; all of them where the file is damaged, or too full to say which."""
        if self._path is None or not self._path.exists():
            return 0
        store = TextStore(self._path, max(self._most_bytes, 1))
        try:
            return remove(store)
        except sqlite3.DatabaseError as error:
            if not is_damage(error) and primary_code(error) != sqlite3.SQLITE_FULL:
                raise
            log.warning("%s was removed as a whole (%s): files are read again", self._path, error)
            count = _counted(store)
            store.close()
            remove_store(self._path)
            return count
        finally:
            store.close()

    def close(self) -> None:
        with self._lock:
            self._close()


def _gone(files: Iterable[KeptFile]) -> list[KeptFile]:
    """Return those of some files, ordered by folder, that are gone or have changed."""
    gone: list[KeptFile] = []
    for (folder, place), group in groupby(files, key=lambda file: (file.folder, file.place)):
        try:
            root = Root.open_approved(place, folder)
        except (FolderReplaced, OSError):
            continue
        try:
            gone += _gone_in(root, group)
        finally:
            root.close()
    return gone


def _gone_in(root: Root, files: Iterable[KeptFile]) -> Iterator[KeptFile]:
    for file in files:
        try:
            with root.open_file(file.path) as descriptor:
                mark = FileMark.of(os.fstat(descriptor))
        except NotThere:
            yield file
        except ToolFailed:  # it may be there
            continue
        else:
            if without_device(mark) != without_device(file.mark):
                yield file


def _counted(store: TextStore) -> int:
    try:
        return store.count()
    except sqlite3.Error:
        return 0


def _first_of(errors: BaseException) -> BaseException:
    while isinstance(errors, BaseExceptionGroup):
        within = cast("tuple[BaseException, ...]", errors.exceptions)  # pyright: ignore[reportUnknownMemberType]
        errors = within[0]
    return errors
