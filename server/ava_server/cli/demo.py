"""`ava demo`: a complete example without key or cost: a real server, a real MCP client, a real folder.

The server is a child process with its own data root and an environment without keys: it touches nothing of this
machine's Ava, and nothing can cost anything.
"""

from __future__ import annotations

import keyword
import math
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from ava_roles.errors import RolesError, ToolFailed
from ava_roles.wrap import add_bars
from ava_server import MODULE_ARGS
from ava_server.approval.decide import Decided
from ava_server.cli.app import INTERRUPTED, NOT_APPROVED
from ava_server.cli.options import absolute_path
from ava_server.cli.results import ENDING_CODES
from ava_server.cli.terminal import YES, Progress, columns, cut, say, someone_there
from ava_server.core.data_root import DataRoot, home_folder
from ava_server.core.errors import AvaError, BadInput, with_advice
from ava_server.core.threads import run_async
from ava_server.render.responses import RunAnswer
from ava_server.render.result import findings_of

if TYPE_CHECKING:
    from mcp import Client

    from ava_server.approval.proposals import Pending


POLL_S = 0.05
WITHIN_S = 180.0
"""The demo takes a few seconds; a server that is silent this long has failed."""
LOG_LINES = 1
PASSAGES_MOST = 1
PASSAGE_CHARS = 160
ANSWERS = 0.75
"""The least words of the question in one sentence of a shown passage, as a share of those in one of the best."""
DOCS_QUESTION = "Does a subagent continue when I close the host?"
"""The question about the shipped documentation."""
_TABLES = shutil.ignore_patterns("reference", "deploy")
"""The parts of the documentation that nobody reads in sentences."""
FILES_MOST = 400
CHARS_MOST = 60_000
"""The characters of one file that count."""
LOOK_S = 2.0
DOCUMENTS_MOST = 5
WORDS = 3
QUESTIONS_MOST = 12
"""The headings whose questions are tried."""
QUOTED_CHARS = 300
SIMULATED_CHARS = 300_000
"""The characters of all files on which they are tried."""
_ENVIRONMENT = ("PYTHONPATH", "SYSTEMROOT", "TMPDIR", "LANG", "LC_ALL")
_HEADING = re.compile(r"^#+ .*$", re.MULTILINE)
_SECTION = re.compile(
    r"(?:^#{1,4} +(?P<heading>[^\n#|`<>\[\]/:]{3,60}?)[ #]*\n|\A\s*(?P<title>[A-Z][^\n.:;|#]{2,40})\n(?=\s*\n))"
    r"\s*(?P<below>[^\n#|>`*\-](?:.|\n(?!\s*\n)){0,400})",
    re.MULTILINE,
)
"""A heading, or a title in the first line, and the paragraph below it."""
_PROSE = frozenset([".md", ".markdown", ".rst", ".txt", ".text", ".org", ".adoc", ""])
_NO_TOPIC = re.compile(
    r"(?:(?:table of )?contents|introduction|installation|licen[sc]e|references|changelog|overview)$"
    r"|(?:what|who|when|where|which|why|how)\b(?! to )[^?]*$",
    re.IGNORECASE,
)
"""Headings that say nothing of what is below, and questions without a question mark."""
_NO_PROSE = re.compile(r"^\s*(?:[|`<{}#]|[-*+] |\d+[.)] )|`{3}|\w\(|[{};]\n", re.MULTILINE)
_SENTENCE_END = re.compile(r"\w[.!?][\"')]*(?=\s|$)")
_WORD = re.compile(r"[^\W\d_]{4,24}")
_CODE = frozenset(keyword.kwlist) | frozenset(
    ["args", "const", "function", "null", "self", "string", "this", "true", "void"]
)


@dataclass
class Demo:
    """What the demo reads and asks, its data root, and the id of the run that it has started."""

    root: DataRoot
    folder: Path
    task: str
    scripted: bool
    keep: bool
    run_id: str = ""


def demo_command(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="The folder to read; default: Ava's documentation.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="What to ask; default: a question made from the folder.")] = None,
    scripted: Annotated[bool, typer.Option("--scripted", help="Let a script play the language model.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the demo's data root, with its log.")] = False,
) -> None:
    """Show proposal, approval, progress, result and log in a few seconds, without a key and without cost."""
    named_folder = None
    if folder is not None:
        named_folder = check_folder(folder)
    if task is not None and not task.strip():
        raise BadInput("--task: the text is empty; say what to look for, or leave it out")
    demo: Demo | None = None
    try:
        with _temporary_folder(keep) as place:
            root = DataRoot(place / "data")
            root.create()
            root.config.write_text('approval = "ask"\n')  # the demo is a host that asks, at this terminal
            # A copy: an installed package often lies in a hidden folder of a home, where no subagent may read.
            where = named_folder or Path(shutil.copytree(shipped_docs(), place / "docs", ignore=_TABLES))
            question = DOCS_QUESTION
            if named_folder or task:
                question = question_about(where)
            demo = Demo(root, where, task or question, scripted, keep)
            code = run_async(_run, demo, place)
    except KeyboardInterrupt:
        what = "nothing was started"
        if demo is not None and demo.run_id:
            what = f"{demo.run_id} had been started, and ended with it"
        say(f"\nStopped; {what}.")
        code = INTERRUPTED
    if demo is not None and keep:
        say(f"Kept: AVA_DATA_ROOT={demo.root.path} ava logs")
    elif demo is not None:
        say("The demo's data root is removed; --keep keeps it.")
    if code in (0, ENDING_CODES["no_answer"]):
        _show_next_steps()
    raise typer.Exit(code)


def _show_next_steps() -> None:
    from ava_server.hosts.launching import launch

    ava = launch()
    say("-- Next --")
    say(f"In your assistant: {ava.typed('init', 'claude-code')}")
    say(f"With a model: {ava.typed('key', 'set', 'openrouter')}")


@contextmanager
def _temporary_folder(keep: bool) -> Generator[Path]:
    place = Path(tempfile.mkdtemp(prefix="ava-demo-")).resolve()
    try:
        yield place
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)


async def _run(demo: Demo, place: Path) -> int:
    from mcp import Client, StdioServerParameters
    from mcp_types import Implementation

    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    environment["AVA_DATA_ROOT"] = str(demo.root.path)
    environment["AVA_BACKGROUND"] = "false"  # nothing is left running when the demo ends
    environment["AVA_WORKSPACE"] = str(demo.folder)  # else what is around the temporary folder would decide
    if demo.scripted:
        from ava_server.models.model_choice import SCRIPTED

        environment["AVA_MODEL"] = SCRIPTED
        say("Starting. The model is a script that comes with Ava, not a language model.")
    else:
        say("Starting. The demo always uses the offline reader, even if you have keys.")
    server = StdioServerParameters(command=sys.executable, args=[*MODULE_ARGS, "serve"], env=environment, cwd=place)
    info = Implementation(name="ava demo", version=version("ava-subagents"))
    async with Client(server, client_info=info, read_timeout_seconds=WITHIN_S) as client:
        return await _DemoHost(client, demo).run()


class _DemoHost:
    """Plays the host: calls the tools, and shows their answers."""

    def __init__(self, client: Client, demo: Demo) -> None:
        self._client = client
        self._demo = demo

    async def run(self) -> int:
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
        if not await self._approve(proposal):
            return NOT_APPROVED
        run = await self._watch(str(proposal["subagent_id"]))
        await self._show_result_and_log(run)
        return ENDING_CODES.get(run.state, 1)

    async def _approve(self, proposal: dict[str, Any]) -> bool:
        answer: dict[str, Any] = {"decision": "reject"}
        if await self._ask(str(proposal["subagent_id"])):
            answer = {"approving": [proposal["approval_line"]]}
        began = time.monotonic()
        decision = Decided(await self._call("confirm_spawn", pending_ids=[proposal["pending_id"]], **answer))
        answer_s = time.monotonic() - began
        if decision.status == "rejected":
            say("Rejected; nothing was started.")
            return False
        if decision.reasons:  # it was decided elsewhere, or has expired
            say(f"{'. '.join(decision.reasons)}.")
        if decision.status == "refused" and not await self._was_approved(proposal):
            return False
        self._demo.run_id = str(proposal["subagent_id"])
        say(f"-- Running in the background: the host had its answer after {answer_s:.1f} s --")
        return True

    async def _ask(self, run_id: str) -> bool:
        """Show a proposal as `ava approve` does, and return whether the person starts it; with nobody there, yes."""
        from ava_server.cli.approve import ask_unfolding
        from ava_server.cli.start_question import ShownProposals

        say("-- Proposed (spawn_subagent); nothing has started. `ava approve` asks: --")
        question = ShownProposals([await self._read_proposal(run_id)], asks=someone_there())
        question.show()
        if someone_there():
            return await ask_unfolding("Start it? [y/N]", question) in YES
        say("There is no terminal to ask on, so the demo approves it by itself.")
        return True

    async def _read_proposal(self, run_id: str) -> Pending:
        """Read a proposal from the demo's own log, as `ava approve` does. Raises AvaError: it no longer waits."""
        from ava_audit.store.store import Store
        from ava_audit.units import now_us
        from ava_server.approval.proposals import pending_proposal, spawn_limits
        from ava_server.cli.log_access import find_run
        from ava_server.config.settings import load_settings

        settings = load_settings(self._demo.root.path, {})
        async with Store.open(self._demo.root.path, "") as store:  # a variable may name a database of the person's
            run = await find_run(store, run_id)
            limits = spawn_limits(settings, run.user_id)
            proposal = await store.read(lambda view: pending_proposal(view, run, limits, now_us()))
        if isinstance(proposal, str):
            raise AvaError(proposal)
        return proposal

    async def _was_approved(self, proposal: dict[str, Any]) -> bool:
        """Tell whether somebody has approved it elsewhere, so that it runs or has run."""
        answer = await self._call("check_subagent", subagent_id=proposal["subagent_id"])
        state = RunAnswer.model_validate(answer["runs"][0]).state
        return state not in ("awaiting_approval", "rejected", "expired", "superseded", "cancelled")

    async def _watch(self, run_id: str) -> RunAnswer:
        progress = Progress(every_s=0.0, err=False)
        began = time.monotonic()
        while True:
            answer = await self._call("check_subagent", subagent_id=run_id)
            run = RunAnswer.model_validate(answer["runs"][0])
            line = run.status_line
            if run.untrusted_activity:
                line += f" · {run.untrusted_activity}"
            progress.show(line)
            if run.untrusted_result is not None:
                progress.end(keep=True)
                # A tool's answer is a page of the result; the resource is all of it.
                resource = await self._client.read_resource(f"ava://runs/{run_id}")
                return RunAnswer.model_validate_json(str(getattr(resource.contents[0], "text", "")))
            if time.monotonic() - began > WITHIN_S:
                raise AvaError(f"{run_id} has not ended within {WITHIN_S:.0f} s; it is {run.state}")
            await anyio.sleep(POLL_S)

    async def _show_result_and_log(self, run: RunAnswer) -> None:
        from ava_audit.units import day_of, now_us

        say("-- Result --")
        say(add_bars("\n".join(result_lines(run, self._demo.task))))
        entries = await self._call("read_ava_logs", subagent_id=run.subagent_id, last_n=LOG_LINES)
        say("-- In the log (read_ava_logs), its end --")
        width = 160
        if sys.stdout.isatty():
            width = columns()
        for line in entries["untrusted_entries"]:
            say(cut(line, width))
        if self._demo.keep:
            logs = self._demo.root.logs
            say(f"\nThe log: {self._demo.root.db}")
            say(f"As JSON lines: {logs / 'ava' / (day_of(now_us()) + '.jsonl')}")
            say(f"               {logs / 'subagents' / (run.subagent_id + '.jsonl')}")

    async def _call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the structured answer. Raises BadInput if it failed; with the server's message."""
        result = await self._client.call_tool(tool, arguments)
        answer: dict[str, Any] = result.structured_content or {}
        if result.is_error:
            raise BadInput(str(answer.get("message", f"{tool} failed without a reason")))
        return answer


def result_lines(run: RunAnswer, task: str) -> Iterator[str]:
    """Yield the summary, and the passages that answer the task: the best first, each shortened to sentences."""
    from ava_roles.texts.passages import Query
    from ava_server.models.offline import THE_BEST
    from ava_server.models.offline_passages import whole_sentences

    result = run.untrusted_result
    if result is None:
        return
    query = Query(task)
    passages: list[str] = []
    least_words = 0.0
    for one in findings_of(run, result.findings):
        sentences = [each for each in whole_sentences(one.quote.text) if not each.startswith("#")]
        if not sentences:
            sentences = [one.quote.text]
        words = [len(query.found_in(sentence)) for sentence in sentences]
        most_words = max(words)
        if not least_words:
            least_words = most_words * ANSWERS
        if len(passages) < PASSAGES_MOST and most_words >= least_words:
            text = excerpt(sentences, words.index(most_words))
            passages.append(f'{len(passages) + 1}. {one.source.text} ({one.checked}): "{text}"')
    summary, _, _ = result.summary.partition(f" {THE_BEST} ")  # the best is the first passage below
    if len(passages) < len(result.findings):
        summary = with_advice(summary, "The best:")
    yield summary
    yield from passages


def excerpt(sentences: Sequence[str], at: int) -> str:
    first, end = at, at + 1
    while end < len(sentences) and len(" ".join(sentences[first : end + 1])) <= PASSAGE_CHARS:
        end += 1
    while first > 0 and len(" ".join(sentences[first - 1 : end])) <= PASSAGE_CHARS:
        first -= 1
    return cut(" ".join(sentences[first:end]), PASSAGE_CHARS)


# -- the folder, and a question about it ------------------------------------------------------------------------------


def shipped_docs() -> Path:
    """Return the documentation's folder: in the installed package, or beside it in a checkout."""
    package = Path(str(files("ava_server")))
    for folder in (package / "_docs", package.parents[1] / "docs"):
        if (folder / "index.md").is_file():
            return folder
    raise AvaError("This installation has no documentation to read; name a folder: ava demo FOLDER")


def check_folder(folder: Path) -> Path:
    """Return the whole path. Raises BadInput if it is missing, unreadable, or never read by subagents."""
    folder = absolute_path("FOLDER", folder)
    place = folder.resolve()
    if place.parent == place:
        raise BadInput(f"FOLDER: {folder} is the whole file system, which is never read; name a folder in it")
    if place == home_folder().resolve():
        raise BadInput(f"FOLDER: a home folder itself is never read; name one inside {folder}")
    try:
        if not folder.exists():
            raise BadInput(f"FOLDER: {folder} does not exist; name a folder with text in it, or none")
        if not folder.is_dir():
            raise BadInput(f"FOLDER: {folder} is not a folder; name the folder that it is in")
        next(folder.iterdir(), None)
    except OSError as error:
        raise BadInput(f"FOLDER: {folder} cannot be read: {error.strerror}; name another one") from None
    return folder


def question_about(folder: Path) -> str:
    """Return a question that somebody might ask of the folder, and that a passage in it answers. Blocks for 2 s or so.

    It is about a heading, one whose question the offline reader answers with prose; else about telling words.
    """
    texts = list(_texts(folder))
    question = _question_about_heading(texts)
    if question:
        return question
    words = telling_words(text for _, text in texts)
    if not words:
        raise BadInput(f"FOLDER: there is no text to read in {folder}; name a folder with text files in it")
    *others, last = words
    topics = last
    if others:
        topics = f"{', '.join(others)} and {last}"
    return f"What do these files say about {topics}?"


def _question_about_heading(texts: Sequence[tuple[str, str]]) -> str:
    """Return the question about the heading whose best passages read best, or empty text."""
    from ava_roles.texts.passages import Query, split_passages
    from ava_server.models.offline_passages import Passage, best_passages, spread_in

    prose = [(name, text) for name, text in texts if PurePosixPath(name).suffix.lower() in _PROSE]
    worth: dict[str, float] = {}
    for _, text in prose:
        for section in _SECTION.finditer(text):
            topic = " ".join((section["heading"] or section["title"]).split())
            if Query(topic).telling and not _NO_TOPIC.match(topic):
                worth.setdefault(_question(topic), worth_reading(section["below"]))
    likely = sorted(worth, key=lambda question: -worth[question])[:QUESTIONS_MOST]
    chars = max(SIMULATED_CHARS // max(len(prose), 1), QUOTED_CHARS)
    passages: list[Passage] = []
    for name, text in prose[:FILES_MOST]:
        passages += [Passage(name, each.where, each.text) for each in split_passages(text[:chars])]
    best_question, best_value = "", 0.0
    for question in likely:
        query = Query(question)
        answer = best_passages(passages, query, spread_in(query, passages), most=2)
        if not answer.fits or not worth_reading(answer.pieces[0].text):
            continue
        value = sum(worth_reading(piece.text) / place for place, piece in enumerate(answer.pieces, 1))
        if value > best_value:
            best_question, best_value = question, value
    return best_question


def _question(topic: str) -> str:
    if topic.endswith("?"):
        return topic
    if topic.lower().startswith("how to "):
        return f"How do I {topic[7:]}?"
    first, _, rest = topic.partition(" ")
    if rest[:1].islower() and first[1:].islower():  # a phrase, not a name
        topic = f"{first.lower()} {rest}"
    return f"What should I know about {topic}?"


def worth_reading(text: str) -> float:
    """Return how much a passage tells a person who reads it alone: whole sentences, with facts; 0 for no prose."""
    text = re.sub(r"^#+ .*\n+", "", text.strip(), flags=re.MULTILINE)[:QUOTED_CHARS]
    letters = sum(char.isalpha() or char.isspace() for char in text)
    if len(text) < 60 or letters < 0.8 * len(text) or _NO_PROSE.search(text):
        return 0.0
    sentences = len(_SENTENCE_END.findall(text))
    if not sentences:
        return 0.0
    worth = len(text) / QUOTED_CHARS
    if sentences > 1:
        worth += 0.3
    if re.search(r"\d", text):
        worth += 0.3
    return worth


def telling_words(texts: Iterable[str]) -> list[str]:
    """Return the words that are typical of some texts, by tf-idf; words of headings count ten times."""
    from ava_roles.texts.passages import filler_words

    weights: dict[str, float] = defaultdict(float)
    spread: Counter[str] = Counter()
    count = 0
    for text in texts:
        words = Counter(word.lower() for word in _WORD.findall(text))
        for title in _HEADING.findall(text):
            for word in _WORD.findall(title):
                words[word.lower()] += 9
        count += bool(words)
        for word, times in words.items():
            weights[word] += 1 + math.log(times)
            spread[word] += 1
    scores = {word: weight * math.log((count + 1) / spread[word]) for word, weight in weights.items()}
    candidates = scores.keys() - filler_words() - _CODE
    best: dict[str, str] = {}
    for word in sorted(candidates, key=lambda word: (-scores[word], word)):
        best.setdefault(word[:5], word)  # no second form of a word
        if len(best) == WORDS:
            break
    return list(best.values())


def _texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of the files that the subagent's search would look at."""
    from ava_roles.sandbox.paths import Root
    from ava_roles.texts import parser_process
    from ava_roles.texts.encodings import decode
    from ava_roles.texts.extracted import Wanted, format_of
    from ava_roles.texts.text_files import WalkFilter

    try:
        root = Root.open(folder)
    except (OSError, RolesError) as error:
        raise BadInput(f"FOLDER: {folder} cannot be opened: {error}; name another one") from None
    until = time.monotonic() + LOOK_S
    read_documents = 0
    try:
        for number, entry in enumerate(root.walk("", limit=FILES_MOST * 10, keep=WalkFilter(root))):
            if number >= FILES_MOST or time.monotonic() > until:
                return
            kind = format_of(entry.name)
            read_documents += kind is not None
            try:
                if kind is None:
                    data, has_more = root.read(entry.name, CHARS_MOST)
                    decoded = decode(data, cut=has_more)
                    yield entry.name, decoded.text if decoded is not None else ""
                elif read_documents <= DOCUMENTS_MOST:
                    data, _ = root.read(entry.name, 10_000_000)
                    kind = format_of(entry.name, data) or kind
                    document = parser_process.read_document(kind, data, Wanted(count=10))
                    yield entry.name, document.text()
            except ToolFailed:
                continue
    finally:
        root.close()
