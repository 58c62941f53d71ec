"""A run that somebody at a terminal waits for: what it does, what Ctrl-C shall mean, and its result."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.abc
import anyio.to_thread

from ava_server.cli.app import INTERRUPTED
from ava_server.cli.at_desk import silent
from ava_server.cli.terminal import ask, harmless_json, interrupts, say, someone_there, tell, write
from ava_server.cli.watching import Watching
from ava_server.errors import BadInput

if TYPE_CHECKING:
    from ava_server.answers import RunAnswer
    from ava_server.desk import Desk
    from ava_server.house import House
    from ava_server.session import Session


class Attending:
    """Shows what a run is doing until it has ended; Ctrl-C asks what shall become of it."""

    def __init__(self, house: House, desk: Desk, run_id: str) -> None:
        from ava_server.claims import Slots

        self._desk = desk
        self._run_id = run_id
        self._house = house
        limits = house.settings.limits
        slots = Slots(limits.running_per_user, limits.running)
        self._watching = Watching(house.store, house.instances, slots, [run_id], house.manager)
        self._asking: anyio.CancelScope | None = None
        self._left: int | None = None

    async def until_it_ends(self) -> int | None:
        """Return None when the run has ended, and an exit code when it was left running."""
        with interrupts() as signals:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._on_signals, signals, tasks)
                await self._watching.until_over(lambda: self._asking is not None)
                tasks.cancel_scope.cancel()
        self._watching.progress.end()
        if self._asking is not None and self._left is None:
            tell()  # the question stands on the line
        return self._left

    async def _on_signals(self, signals: AsyncIterator[int], tasks: anyio.abc.TaskGroup) -> None:
        async for _number in signals:
            if self._asking is not None or not someone_there():
                tasks.start_soon(self._cancel, tasks)  # nobody can be asked, or is asked already
                if self._asking is not None:
                    self._asking.cancel()
                continue
            tasks.start_soon(self._ask, tasks)
            self._asking = anyio.CancelScope()

    async def _ask(self, tasks: anyio.abc.TaskGroup) -> None:
        assert self._asking is not None
        self._watching.progress.end()
        with self._asking:
            tell(f"{self._run_id} goes on meanwhile. Cancel it (what it has is kept), or leave it?")
            row = await self._house.store.read(lambda view: view.run(self._run_id))
            ours = row is None or row.instance == self._house.manager.instance
            where = "it is interrupted until an Ava server of this user takes it up" if ours else "it goes on"
            tell(f"Left, {where}. Ctrl-C again cancels.")
            while (answer := await ask("[c]ancel or [l]eave:")) not in ("c", "cancel", "l", "leave", ""):
                tell("c or l.")
            if answer in ("c", "cancel"):
                await self._cancel(tasks)
            else:
                tell(f"Left. `ava show {self._run_id}` tells what became of it.")
                self._left = INTERRUPTED
                tasks.cancel_scope.cancel()
        self._asking = None

    async def _cancel(self, tasks: anyio.abc.TaskGroup) -> None:
        from ava_server.answers import FAILED

        tell("Cancelling.")
        given = {"subagent_id": self._run_id, "reason": "cancelled at the terminal"}
        answer = await self._desk.call("cancel_subagent", given, silent)
        if answer.status == FAILED:  # it was stopped all the same, and its record follows when the log can take it
            tell(f"Its end is not on the record: {answer.message}")
            self._left = INTERRUPTED
            tasks.cancel_scope.cancel()


async def deliver(
    house: House, session: Session, run_id: str, command: str, *, as_json: bool, out: Path | None = None
) -> int:
    """Hand over the result, put on record that it was, and return the exit code of its ending.

    Args:
        house: The open data root.
        session: Whose it is.
        run_id: The run, which has ended.
        command: The command that hands it over, as the log names it.
        as_json: As one JSON object.
        out: A file in place of the standard output.

    Raises:
        BadInput: The file cannot be written.
    """
    from ava_server.cli.reading import note_fetched, whole_answer
    from ava_server.cli.views import exit_code, result_text
    from ava_server.ids import label

    run, answer = await whole_answer(house.store, run_id, house.instances.alive)
    text = _json_of(house, answer) if as_json else result_text(answer)
    if out is not None:
        await anyio.to_thread.run_sync(_write_out, out, text)
        (tell if as_json else say)(f"{label(run)} {run.state}: written to {out}")
    elif as_json:
        write(text)
    else:
        say(text)
    await note_fetched(house.store, session, command, run)
    return exit_code(run)


def _json_of(house: House, answer: RunAnswer) -> str:
    value = {"data_root": str(house.settings.data_root), **answer.model_dump(mode="json", exclude_none=True)}
    return harmless_json(json.dumps(value, ensure_ascii=False))


def _write_out(path: Path, text: str) -> None:
    from ava_roles.wrap import clean

    try:
        path.write_text(clean(text)[0] + "\n", "utf-8")
    except OSError as error:
        raise BadInput(f"--out: {path} cannot be written: {error.strerror}; `ava show` has the result") from error
