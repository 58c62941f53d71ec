"""`ava demo`: the whole way once, for nothing: a real server, a real MCP client, a real folder.

The server is a child process with a data root of its own and an environment without keys, so that nothing of this
machine's Ava is touched and nothing can cost anything.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from ava_server.cli.app import INTERRUPTED, NOT_APPROVED, heading
from ava_server.cli.terminal import Progress, agrees, columns, cut, say, someone_there
from ava_server.core.data_root import DataRoot
from ava_server.core.errors import AvaError, BadInput

if TYPE_CHECKING:
    from mcp import Client

    from ava_server.service.responses import RunAnswer

POLL_S = 0.05
WITHIN_S = 60.0
"""The demo takes a few seconds; a server that answers nothing for so long never will."""
LOG_LINES = 8
_PASSED_ON = ("PYTHONPATH", "SYSTEMROOT", "TMPDIR", "LANG", "LC_ALL")


def register(app: typer.Typer) -> None:
    """Add `ava demo` to the app."""
    app.command("demo", short_help="The whole way once, in a few seconds, without a key.")(demo_command)


@dataclass
class Demo:
    """What the demo reads and asks, where it keeps what happens, and the run that it has started."""

    root: DataRoot
    folder: Path
    task: str
    scripted: bool
    keep: bool
    started: str = ""


def demo_command(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FOLDER]", show_default=False, help="What to read; Ava's own documentation if left out."
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(show_default=False, help="What to ask in place of a made-up question.")
    ] = None,
    scripted: Annotated[bool, typer.Option("--scripted", help="Let a script play the language model.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the data root of the demo, with its log.")] = False,
) -> None:
    """Show proposal, approval, progress, result and log in a few seconds, without a key and for nothing."""
    from ava_server.cli import demo_folder

    named = demo_folder.checked_folder(folder) if folder is not None else None
    if task is not None and not task.strip():
        raise BadInput("--task: empty text was given; say what to look for, or leave it out")
    demo: Demo | None = None
    try:
        with _temporary(keep) as place:
            root = DataRoot(place / "data")
            root.create()
            where = named or demo_folder.copied_docs(place)
            question = demo_folder.question_about(where) if named or task else demo_folder.DOCS_QUESTION
            heading(root)
            demo = Demo(root, where, task or question, scripted, keep)
            code = anyio.run(_demo, demo, place)
    except KeyboardInterrupt:
        what = f"{demo.started} had been started, and ended with it" if demo and demo.started else "nothing was started"
        say(f"\nStopped; {what}.")
        code = INTERRUPTED
    if demo is not None:
        say()
        if keep:
            say(f"Kept: AVA_DATA_ROOT={demo.root.path} ava logs")
        else:
            say("The demo's data root is removed; --keep keeps it.")
    raise typer.Exit(code)


@contextmanager
def _temporary(keep: bool) -> Generator[Path]:
    place = Path(tempfile.mkdtemp(prefix="ava-demo-")).resolve()
    try:
        yield place
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)


async def _demo(demo: Demo, place: Path) -> int:
    from mcp import Client, StdioServerParameters

    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment["AVA_DATA_ROOT"] = str(demo.root.path)
    environment["AVA_WORKSPACE"] = str(demo.folder)  # else the temporary folder's surroundings would decide
    if demo.scripted:
        from ava_server.models.selection import SCRIPTED

        environment["AVA_MODEL"] = SCRIPTED
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "ava_server", "serve"], env=environment, cwd=place
    )
    say("Starting `ava serve` and connecting to it as an MCP host does …")
    async with Client(server, read_timeout_seconds=WITHIN_S) as client:
        return await _Host(client, demo).play()


class _Host:
    """Plays the host: calls the tools, and shows what they answer."""

    def __init__(self, client: Client, demo: Demo) -> None:
        self._client = client
        self._demo = demo

    async def play(self) -> int:
        """Go the whole way, and return the exit code."""
        from ava_roles.tools.registry import tool_specs

        specs = tool_specs().values()
        reads_files = [spec.name for spec in specs if spec.default and not spec.network]
        proposal = await self._call(
            "spawn_subagent",
            role="researcher",
            task=self._demo.task,
            workspace=str(self._demo.folder),
            tools=[*reads_files, "scratchpad"],
            name="demo",
        )
        say()
        say("-- Proposed (spawn_subagent). Nothing has started. --")
        say(str(proposal["message"]))
        if self._demo.scripted:
            say("The model is a script that comes with Ava, not a language model.")
        else:
            say("The demo always uses the offline reader, whatever keys you have: it can cost nothing.")
        approved = await self._approved(proposal)
        if not approved:
            return NOT_APPROVED
        run = await self._watched(str(proposal["subagent_id"]))
        await self._show_result(run)
        await self._show_log(run)
        return 0 if run.state == "success" else 1

    async def _approved(self, proposal: dict[str, Any]) -> bool:
        say()
        say("-- Approval (confirm_spawn), letter for letter: --")
        say(str(proposal["approval_line"]))
        if someone_there():
            agreed = await agrees("Start it?")
        else:
            agreed = True
            say("There is no terminal to ask on, so the demo approves it by itself.")
        ids = [proposal["pending_id"]]
        if not agreed:
            await self._call("confirm_spawn", pending_ids=ids, decision="reject")
            say("Rejected; nothing was started.")
            return False
        self._demo.started = str(proposal["subagent_id"])
        await self._call("confirm_spawn", pending_ids=ids, approving=[proposal["approval_line"]])
        return True

    async def _watched(self, run_id: str) -> RunAnswer:
        """Show what the run does until it has ended, and return it with its result."""
        say()
        say("-- Running in the background (check_subagent) --")
        progress = Progress(every_s=0.0, err=False)
        began = time.monotonic()
        while True:
            run = await self._checked(run_id)
            doing = f" · {run.untrusted_activity}" if run.untrusted_activity else ""
            progress.show(f"{run.status_line}{doing}")
            if run.untrusted_result is not None:
                progress.end(keep=True)
                return await self._whole(run)
            if time.monotonic() - began > WITHIN_S:
                raise AvaError(f"{run_id} has not ended within {WITHIN_S:.0f} s; it is {run.state}")
            await anyio.sleep(POLL_S)

    async def _whole(self, run: RunAnswer) -> RunAnswer:
        """Return the whole of a result: an answer of a tool is a page of it, the resource is all."""
        from ava_server.service.responses import RunAnswer

        found = await self._client.read_resource(f"ava://runs/{run.subagent_id}")
        return RunAnswer.model_validate_json(str(getattr(found.contents[0], "text", "")))

    async def _show_result(self, run: RunAnswer) -> None:
        from ava_server.cli.showing import show_results

        say()
        say("-- Result --")
        show_results([run], brief=True)

    async def _show_log(self, run: RunAnswer) -> None:
        from ava_audit.units import day_of, now_us

        logs = self._demo.root.logs
        entries = await self._call("read_ava_logs", subagent_id=run.subagent_id, last_n=LOG_LINES)
        say()
        say("-- On the record (read_ava_logs), the last lines --")
        for line in entries["untrusted_entries"]:
            say(cut(line, columns() if sys.stdout.isatty() else 160))
        if not self._demo.keep:
            return
        say()
        say(f"The log: {self._demo.root.db}")
        say(f"As JSON lines: {logs / 'ava' / (day_of(now_us()) + '.jsonl')}")
        say(f"               {logs / 'subagents' / (run.subagent_id + '.jsonl')}")

    async def _checked(self, run_id: str) -> RunAnswer:
        from ava_server.service.responses import RunAnswer

        answer = await self._call("check_subagent", subagent_id=run_id)
        return RunAnswer.model_validate(answer["runs"][0])

    async def _call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return the structured form of its answer.

        Raises:
            BadInput: It failed; says what the server said.
        """
        result = await self._client.call_tool(tool, arguments)
        answer: dict[str, Any] = result.structured_content or {}
        if result.is_error:
            raise BadInput(str(answer.get("message", f"{tool} failed without a reason")))
        return answer
