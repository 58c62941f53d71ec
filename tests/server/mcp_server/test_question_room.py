"""What a person sees of Ava's question in a window of 80 columns and 24 rows, as Claude Code and Codex cut it there."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.hosts import extensions, small_window
from support.hosts.elicitation import Host, accept, decline, host, read_and_accept
from support.repositories.projects import checkout
from support.runtime import PRICED

from ava_audit.events import SpawnDecided, UserMessage
from ava_server.approval.start_form import LINES
from ava_server.mcp_server.elicitation import TOO_FAST

CODEX, CLAUDE = "codex-mcp-client", "claude-code"
PATH_CHARS = 60
FOLDER = re.compile(r" /tmp/…/yearly-accou")
"""A path of 60 characters by its ends: its first name, and its last, which may be cut."""
UNCONFINED = f'[sandbox]\nmode = "none"\n{PRICED}'
TASK = "Find what each payment costs in the notes, and compare it with the price list on the web. " * 9


@pytest.fixture
def place() -> Iterator[Path]:
    """Yield a folder with a short path, so that one of 60 characters can be made in it."""
    with tempfile.TemporaryDirectory(prefix="ava-", dir="/tmp") as folder:
        yield Path(folder)


def notes_in(place: Path) -> str:
    """Return a checkout whose path has 60 characters."""
    between = PATH_CHARS - len(f"{place}/workspace//yearly-accounts")
    folder = checkout(place / "workspace" / ("w" * between) / "yearly-accounts", {"notes.txt": "Otter: 12 cents\n"})
    assert len(str(folder)) == PATH_CHARS
    return str(folder)


Spawn = dict[str, Any]


def reader(folder: str) -> Spawn:
    return {"role": "researcher", "task": TASK, "workspace": folder, "max_cost_cents": 20}


def reviewer(folder: str) -> Spawn:
    return {**reader(folder), "role": "code_reviewer"}


def coder(folder: str) -> Spawn:
    changes = {"namespace": ["notes.txt"], "verify": "make check", "context": "Prices are in cents."}
    return {**reader(folder), "role": "coder", **changes, "max_cost_cents": 50}


def plan(folder: str, *, ids: tuple[str, str, str] = ("read", "send", "fix")) -> Spawn:
    read, send, fix = ids
    sends = {"role": "researcher", "task": f"Compare with the web: {{{{{read}}}}}", "tools": ["read_webpages"]}
    steps: list[Spawn] = [
        {**reader(folder), "id": read, "tools": ["read_file"]},
        {**sends, "id": send, "max_cost_cents": 20},
        {**coder(folder), "id": fix, "task": f"Correct the notes: {{{{{send}}}}}"},
    ]
    return {"name": "The price list of the year", "max_cost_cents": 80, "steps": steps}


def long_plan(folder: str) -> Spawn:
    return plan(
        folder, ids=("read_everything_in_the_notes", "send_everything_to_the_web", "fix_everything_that_is_wrong")
    )


@dataclass(frozen=True)
class Kind:
    """A kind of question: what is proposed, and what must be seen of it at once besides the folder and the task."""

    spawns: tuple[Callable[[str], Spawn], ...]
    price: str
    sees: tuple[str, ...]
    last: str | None = None
    config: str = PRICED

    async def ask(self, at: Host, folder: str) -> str:
        """Have the person asked, and return the question."""
        made = [await at.call("spawn_subagent", **spawn(folder)) for spawn in self.spawns]
        more = {"group_timeout": 900} if self.last else {}
        await at.confirm(*made, last=self.last, **more)
        return at.person.asked[-1].message


WEB, LEAVES = "reaches the web", "Private data can leave this machine: what"
TOGETHER = "2 subagents together, at most $0.40 and 15 min"
UNSAFE = "Nothing confines what it runs here"
KINDS = {
    "one": Kind((reader,), "At most $0.20 and 10 min", (WEB,)),
    "one without a sandbox": Kind((reviewer,), "At most $0.20 and 10 min", (UNSAFE,), config=UNCONFINED),
    "coder": Kind((coder,), "At most $0.50 and 30 min", ("changes /tmp",)),
    "plan": Kind((plan,), "At most $0.80 and ", (WEB, LEAVES)),
    "plan with long names": Kind((long_plan,), "At most $0.80 and ", (WEB, LEAVES)),
    "several": Kind((reader, reviewer), "at most $0.40 and 15 min", ("reach the web",), TOGETHER),
    "several without a sandbox": Kind(
        (reader, reviewer), "at most $0.40 and 15 min", ("reach the web", f"2: {UNSAFE}"), TOGETHER, UNCONFINED
    ),
}  # fmt: skip
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@each_kind
async def test_claude_code_shows_price_time_reach_folder_task_and_warning_in_three_lines(
    place: Path, kind: Kind
) -> None:
    async with host(place, "auto", decline, config=kind.config, name=CLAUDE) as at:
        *lines, more = small_window.claude_code(await kind.ask(at, notes_in(place)))
    shown = "\n".join(lines)
    assert len(lines) == small_window.CLAUDE_LINES and more.startswith("… (+")
    for words in (kind.price, '"Find what each', *kind.sees):
        assert words in shown, shown
    assert FOLDER.search(shown), shown


@each_kind
@pytest.mark.parametrize("again", [False, True], ids=["asked once", "asked again"])
async def test_codex_shows_the_whole_question_with_its_no(place: Path, kind: Kind, again: bool) -> None:
    async with host(place, "legacy", decline, config=kind.config, name=CODEX) as at:
        question = await kind.ask(at, notes_in(place))
    rows = small_window.codex(f"{TOO_FAST} \n \n{question}" if again else question)
    assert rows[-1] == "  2. No", "\n".join(rows)
    assert len(small_window.codex(question)) - 2 <= LINES
    for words in (kind.price, *kind.sees):
        assert words.lower() in "\n".join(rows).lower()


@each_kind
async def test_a_question_counts_what_it_leaves_out_and_says_where_it_is(place: Path, kind: Kind) -> None:
    """Each sentence of the proposals stands whole in the question, or is one of those that are counted."""
    async with host(place, "legacy", decline, config=kind.config, name=CODEX) as at:
        question = (await kind.ask(at, notes_in(place))).replace(" \n", "\n")
    [notice] = re.findall(r"(?m)^Not here: .*$", question)
    left_out = re.search(r"(\d+) sentences? \(", notice)
    cut = re.search(r"the end of (\d+)", notice)
    assert left_out or cut
    assert "`ava approve" in notice and notice.endswith("and Ava's pages show all.")
    lines = question.split("\n")
    unfinished = [
        line for line in lines if re.search('…["`]*$', line) and not re.match(r"\d\. |\w+, at most|plan, ", line)
    ]
    assert len(unfinished) <= int(cut[1] if cut else 0) + 1, "one of them may be the short form of a row"
    assert all(line.count('"') % 2 == 0 for line in lines), "nothing quoted stays open"


async def approve(place: Path, spawn: Spawn, name: str) -> tuple[str, str | None, str | None]:
    """Approve a proposal in a host; return the question, and what the log has: what was not shown, and what was."""
    answers = read_and_accept(decision="Yes") if name == CODEX else accept()
    async with host(place, "legacy", answers, name=name) as at:
        made = await at.call("spawn_subagent", **spawn)
        made.setdefault("subagent_id", made.get("group_id"))
        assert (await at.confirm(made))["status"] == "approved"
        [decided] = await at.facts(made, SpawnDecided)
        [said] = [fact for fact in await at.facts(made, UserMessage) if fact.kind == "decision"]
        await at.call("cancel_subagent", subagent_id=made["subagent_id"])
        return at.person.asked[-1].message.replace(" \n", "\n"), decided.folded, said.screen


@pytest.mark.parametrize("spawn", [plan, coder], ids=["plan", "coder"])
async def test_the_log_keeps_what_the_person_was_not_shown(place: Path, spawn: Callable[[str], Spawn]) -> None:
    question, folded, screen = await approve(place, spawn(notes_in(place)), CODEX)
    assert folded is not None and "context and instructions" in folded and "model" in folded
    assert f"Not here: {folded}. `ava approve P-" in question
    assert screen is not None and question.startswith(screen)


async def test_the_log_keeps_that_a_host_shows_three_lines(place: Path) -> None:
    question, folded, screen = await approve(place, reader(notes_in(place)), CLAUDE)
    assert folded is not None and "model" in folded and screen is not None
    for line, shown in zip(question.split("\n"), screen.split("\n"), strict=False):
        assert line.startswith(re.sub('…"?$', "", shown))
    assert screen.count("\n") == small_window.CLAUDE_LINES - 1


async def test_the_log_says_of_a_question_that_shows_all_that_nothing_was_left_out(place: Path) -> None:
    spawn = {"role": "researcher", "task": "Look", "workspace": str(place / "workspace"), "max_cost_cents": 20}
    question, folded, screen = await approve(place, spawn, CODEX)
    assert folded is None and screen is None
    assert "Not here:" not in question and "Model: custom:test." in question


@pytest.mark.parametrize("chars", [PATH_CHARS, 1_800])
async def test_a_request_for_more_leaves_room_for_the_no(place: Path, chars: int) -> None:
    """The line that is approved then has the whole path; what has no room is counted, and the log keeps the rest."""
    folder = Path(notes_in(place))
    while len(str(folder)) + 200 < chars:
        folder /= "n" * 190
    folder.mkdir(parents=True, exist_ok=True)
    async with host(place, "legacy", read_and_accept(decision="Yes"), extensions.keep_noting, name=CODEX) as at:
        made = await at.propose(**extensions.CAP, workspace=str(folder), task=TASK)
        await extensions.confirm_until_asked(at, made)
        question = at.person.asked[-1].message.replace(" \n", "\n")
        said = [fact for fact in await at.facts(made, UserMessage) if fact.kind == "decision"][-1]
        await at.call("cancel_subagent", subagent_id=made["subagent_id"])
    rows = small_window.codex(question)
    assert rows[-1] == "  2. No" and len(rows) - 2 <= LINES
    assert "near its cost cap of $0.20" in small_window.claude_code(question)[0]
    assert "If you decline, the run hands in what it has" in question
    is_whole = chars == PATH_CHARS
    assert (str(folder) in question) is is_whole
    assert ("Not here: the end of 1 sentence. `ava wait S-" in question) is not is_whole
    assert said.screen == (None if is_whole else question)
