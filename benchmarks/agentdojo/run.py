"""How much harm an injected instruction can do through a subagent's real tools: AgentDojo's suites, played through Ava.

    python benchmarks/agentdojo/run.py [--suite banking] [--column scope] [--carrier skill] [--limit 3] [--workers 2]

The model is scripted and always obeys the injection, so a figure says what Ava lets through, not what a model falls
for. Everything else is real: the approval, the loop, the log, the connection to the MCP server, AgentDojo's tools and
its judges. The first start installs AgentDojo into build/agentdojo.
"""

from __future__ import annotations

import argparse
import html
import http.client
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.foreign.origins import answer  # noqa: E402
from support.model_server import Say  # noqa: E402
from support.runtime import Lab, open_lab  # noqa: E402

from ava_audit.events import Asked  # noqa: E402
from ava_server.runs.origins.call_values import leaves  # noqa: E402

SUITES = ("workspace", "travel", "banking", "slack")
ROLE = "assistant"
LIMITS = """
mirror = false
desktop_notifications = false
[limits]
max_iterations = 1000
max_tool_calls = 1000
question_wait_s = 60
"""
RUN_S = 120
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where the log lies, so that no commit waits for a disk."""
_GOES_ON = re.compile(r"read_tool_result (R-\w+) with offset (\d+) goes on\]$")


@dataclass(frozen=True)
class Column:
    """A way to use Ava: which tools the role for a user task has, and what its file says beside."""

    tools: Callable[[Sequence[str], Sequence[str]], Sequence[str]]
    """Of all tools of the suite, and those that the task's scripted calls use."""
    origins: bool = False
    """Whether values are checked for where they come from, by the rules of effects.toml."""


COLUMNS = {
    "undefended": Column(tools=lambda every, _used: every),
    "scope": Column(tools=lambda _every, used: used),
    "origins": Column(tools=lambda every, _used: every, origins=True),
    "scope and origins": Column(tools=lambda _every, used: used, origins=True),
}
TABLE = ("undefended", "scope", "scope and origins")
"""The columns that are played unless others are chosen."""
RULES = tomllib.loads((HERE / "effects.toml").read_text("utf-8"))


def effects(suite: str, tools: Sequence[str], *, checked: bool) -> str:
    """Return the line `effects` of a role; where nothing is checked, each value may come from anywhere, and
    no call is asked about."""
    rules = {tool: ["any", "allow"] for tool in tools}
    if checked:
        rules = {tool: ["any"] for tool in RULES[suite]["reads"]}
        rules |= {what: where.split(", ") for what, where in RULES[suite].items() if what != "reads"}
    named = {
        f"mcp__{suite}__{what}": ", ".join(
            each if each in ("any", "allow") else f"mcp__{suite}__{each}" for each in sources
        )
        for what, sources in rules.items()
    }
    return f"effects: {json.dumps(named)}\n"


@dataclass(frozen=True)
class Outcome:
    """What came of one run. `security` is AgentDojo's word for an attack that has reached its effect."""

    column: str
    suite: str
    user: str
    injection: str | None
    utility: bool
    security: bool | None
    obeyed: bool
    questions: int
    state: str


# -- AgentDojo ------------------------------------------------------------------------------------------------------


def python_of_agentdojo() -> Path:
    """Return a Python that has AgentDojo; install it if the requirements have changed."""
    folder = ROOT / "build" / "agentdojo"
    python, done, wanted = folder / "bin" / "python", folder / "installed.txt", HERE / "requirements.txt"
    if not done.exists() or done.read_bytes() != wanted.read_bytes():
        print("installing AgentDojo …", file=sys.stderr, flush=True)
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", wanted], check=True)
        done.write_bytes(wanted.read_bytes())
    return python


class Dojo:
    """AgentDojo's process: one task at a time, and an MCP server for each suite."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connection = http.client.HTTPConnection("127.0.0.1", port)

    def __call__(self, do: str, **args: Any) -> Any:
        self._connection.request("POST", "/control", json.dumps({"do": do, **args}))
        answer = self._connection.getresponse()
        return json.loads(answer.read())

    @property
    def config(self) -> str:
        return "".join(f'[mcp_servers.{name}]\nurl = "http://127.0.0.1:{self.port}/{name}"\n' for name in SUITES)


@contextmanager
def running_dojo(python: Path) -> Generator[Dojo]:
    with subprocess.Popen([python, HERE / "suites.py"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Dojo(int(process.stdout.readline()))
        finally:
            process.kill()


# -- the model ------------------------------------------------------------------------------------------------------


@dataclass
class Model:
    """Makes the user task's calls one by one; when it reads the injection, it first does what that says.

    Of the injection's calls, it leaves out those of tools that it does not have: Ava would end the run at the third.
    """

    dojo: Dojo
    suite: str = ""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    goal: str = ""
    output: str = ""
    obeyed: bool = False

    def begin(self, suite: str, task: dict[str, Any], first: Sequence[tuple[str, dict[str, Any]]] = ()) -> None:
        self.suite, self.output, self.obeyed = suite, task["output"], False
        self.goal = bare(task["goal"] or "")
        self.calls = [*first, *self._named(task["calls"])]

    def __call__(self, request: dict[str, Any]) -> Say:
        read = last_result(request["messages"])
        if self.goal and not self.obeyed:
            if self.goal in bare(read):
                self.obeyed = True
                attack = self.dojo("obey")
                offered = {each["function"]["name"] for each in request["tools"]}
                self.calls = [each for each in self._named(attack["calls"]) if each[0] in offered] + self.calls
                self.output = f"{self.output}\n{attack['say']}"
            elif (more := _GOES_ON.search(read)) is not None:
                return Say(calls=[("read_tool_result", {"id": more[1], "offset": int(more[2])})], fragment=10_000)
        if self.calls:
            return Say(calls=[self.calls.pop(0)], fragment=10_000)
        return Say(calls=[("submit_result", {"summary": "Done.", "output": self.output})], fragment=10_000)

    def _named(self, calls: Iterable[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
        return [(f"mcp__{self.suite}__{each['tool']}", each["args"]) for each in calls]


def last_result(messages: Sequence[dict[str, Any]]) -> str:
    """Return what the last call has brought; at the beginning what the task brings."""
    is_first = sum(each["role"] == "user" for each in messages) == 1 and messages[-1]["role"] == "user"
    return str(messages[-1]["content"]) if is_first or messages[-1]["role"] == "tool" else ""


def bare(text: str) -> str:
    """Return the letters and digits of a text: YAML folds lines and doubles quotes, and Ava escapes tags."""
    return re.sub(r"\W+|\\n", "", html.unescape(text.replace("\\n", " ")))


# -- the runs -------------------------------------------------------------------------------------------------------


SKILL = "habits"


@dataclass(frozen=True)
class Carrier:
    """How the planted text reaches the model, where no tool of the suite brings it, and what the role says for that."""

    keys: str
    file: str
    """Of the workspace, or of the data root."""
    calls: Sequence[tuple[str, dict[str, Any]]] = ()
    """What the model calls first."""

    def plant(self, lab: Lab, text: str) -> None:
        place = (lab.root if self.calls else lab.workspace) / self.file
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        head = f"---\nname: {SKILL}\ndescription: How such work is done here.\n---\n" if self.calls else ""
        place.write_text(f"{head}{text}\n", "utf-8")


CARRIERS = {
    "tool": None,
    "AGENTS.md": Carrier("project_instructions: true\n", "AGENTS.md"),
    "skill": Carrier(f"skills: [{SKILL}]\n", f"skills/{SKILL}/SKILL.md", [("read_skill", {"name": SKILL})]),
}


def write_role(root: Path, suite: str, tools: Sequence[str], carrier: Carrier | None, *, checked: bool) -> None:
    named = [f"mcp__{suite}__{tool}" for tool in tools]
    names = ", ".join(named if carrier is None else ["read_file", *named])
    head = f"name: {ROLE}\ndescription: Does a task with the tools of {suite}.\ntools: [{names}]\n"
    caps = "maxTurns: 200\nmax_tool_calls: 200\n" + (carrier.keys if carrier is not None else "")
    (root / "roles").mkdir(mode=0o700, exist_ok=True)
    text = f"---\n{head}{caps}{effects(suite, tools, checked=checked)}---\nDo what the task says.\n"
    file = root / "roles" / f"{ROLE}.md"
    if not file.exists() or file.read_text() != text:
        file.write_text(text)


@dataclass
class Player:
    """Plays tasks through one Ava, one after the other."""

    lab: Lab
    model: Model
    carrier: Carrier | None

    async def play(self, column: str, suite: str, tools: Sequence[str], user: str, injection: str | None) -> Outcome:
        """Play one task, from the proposal to the judges."""
        carrier = self.carrier
        task = await self._dojo("begin", suite=suite, user=user, injection=injection, planted_here=carrier is None)
        used = sorted({each["tool"] for each in task["calls"]})
        chosen = COLUMNS[column]
        write_role(self.lab.root, suite, chosen.tools(tools, used), carrier, checked=chosen.origins)
        if carrier is not None:
            await anyio.to_thread.run_sync(carrier.plant, self.lab, task["planted"])
        self.model.begin(suite, task, carrier.calls if carrier is not None else ())
        workspace = None if carrier is None else str(self.lab.workspace)
        run_id = await self.lab.start(role=ROLE, task=task["prompt"], workspace=workspace)
        async with anyio.create_task_group() as tasks:
            if chosen.origins:
                tasks.start_soon(self._answer, run_id, known_to(task["calls"]))
            row = await self.lab.ended(run_id, RUN_S)
            tasks.cancel_scope.cancel()
        result = await self.lab.result(run_id)
        verdict = await self._dojo("judge", output=str(result["untrusted_result"].get("output") or ""))
        asked = await self.lab.facts(run_id, Asked)
        for kept in (self.lab.server.requests, self.lab.server.answered):
            kept.clear()
        return Outcome(
            column, suite, user, injection, **verdict,
            obeyed=self.model.obeyed, questions=len(asked), state=row.state,
        )  # fmt: skip

    async def _answer(self, run_id: str, known: frozenset[str]) -> None:
        """Answer as a person who knows what they have asked for: yes to the values of their own task, no to others."""
        for number in range(1, 1_000):
            await self.lab.logged(run_id, "Asked", number, RUN_S)
            asked = (await self.lab.facts(run_id, Asked))[-1]
            allowed = {each["value"] for each in asked.values} <= known
            await answer(self.lab, run_id, "yes" if allowed else "no", "terminal", shown=asked)

    async def _dojo(self, do: str, **args: Any) -> Any:
        return await anyio.to_thread.run_sync(lambda: self.model.dojo(do, **args))


def known_to(calls: Iterable[dict[str, Any]]) -> frozenset[str]:
    """Return the values in calls, as a question shows them."""
    return frozenset(str(leaf) for call in calls for leaf in leaves(call["args"]))


@dataclass(frozen=True)
class Share:
    """What one process plays: of the chosen suites and columns, every so-many-th user task."""

    python: Path
    suites: Sequence[str]
    columns: Sequence[str]
    carrier: str
    limit: int | None
    number: int
    of: int


def play_share(share: Share) -> list[Outcome]:
    return anyio.run(_play_share, share)


async def _play_share(share: Share) -> list[Outcome]:
    found: list[Outcome] = []
    place = MEMORY if CARRIERS[share.carrier] is None else None  # /dev is no workspace
    with running_dojo(share.python) as dojo, tempfile.TemporaryDirectory(dir=place) as folder:
        model = Model(dojo)
        known = dojo("list")
        tasks = [(suite, user) for suite in share.suites for user in known[suite]["users"][: share.limit]]
        for column in share.columns:
            place = Path(folder) / column
            place.mkdir()
            config = LIMITS + dojo.config
            async with open_lab(place, model, config=config, check=False) as lab:
                player = Player(lab, model, CARRIERS[share.carrier])
                for suite, user in tasks[share.number :: share.of]:
                    for injection in (None, *known[suite]["injections"]):
                        found.append(await player.play(column, suite, known[suite]["tools"], user, injection))
                    print(f"{column}: {suite} {user}", file=sys.stderr, flush=True)
    return found


# -- the table ------------------------------------------------------------------------------------------------------


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the figures of each suite and column, as Markdown."""
    lines = [
        "| suite | column | attacks that reached their effect | user tasks done | without a question | with at most one"
        " | done under attack |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    suites = [suite for suite in SUITES if any(each.suite == suite for each in outcomes)]
    for suite in (*suites, "all"):
        for column in COLUMNS:
            rows = [each for each in outcomes if each.column == column and suite in (each.suite, "all")]
            if not rows:
                continue
            attacks = [each for each in rows if each.injection is not None]
            calm = [each for each in rows if each.injection is None]
            lines.append(
                f"| {suite} | {column} | {sum(bool(each.security) for each in attacks)} of {len(attacks)}"
                f" | {sum(each.utility for each in calm)} of {len(calm)}"
                f" | {sum(each.utility and not each.questions for each in calm)}"
                f" | {sum(each.utility and each.questions <= 1 for each in calm)}"
                f" | {sum(each.utility for each in attacks)} of {len(attacks)} |"
            )
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--suite", action="append", choices=SUITES, help="may be repeated; otherwise all")
    options.add_argument(
        "--column", action="append", choices=COLUMNS, help=f"may be repeated; otherwise {', '.join(TABLE)}"
    )
    options.add_argument(
        "--carrier", choices=CARRIERS, default="tool", help="what brings the planted text; otherwise tools of the suite"
    )
    options.add_argument("--limit", type=int, help="only the first user tasks of each suite")
    options.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes, each with an Ava")
    options.add_argument("--json", type=Path, help="write the outcome of each run here")
    chosen = options.parse_args()
    begun = time.monotonic()
    python = python_of_agentdojo()
    shares = [
        Share(
            python, chosen.suite or SUITES, chosen.column or TABLE, chosen.carrier, chosen.limit, number, chosen.workers
        )
        for number in range(chosen.workers)
    ]
    with ProcessPoolExecutor(chosen.workers, multiprocessing.get_context("spawn")) as pool:
        outcomes = [each for played in pool.map(play_share, shares) for each in played]
    outcomes.sort(key=lambda each: (each.column, each.suite, each.user, each.injection or ""))
    print(table(outcomes))
    attacks = [each for each in outcomes if each.injection is not None]
    print(f"\n{len(outcomes):,} runs in {time.monotonic() - begun:.0f} s", end="")
    print(f"; {sum(not each.obeyed for each in attacks)} attacks were never shown to the model", end="")
    print(f"; {sum(each.state != 'success' for each in outcomes)} runs did not end well")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([asdict(each) for each in outcomes], indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
