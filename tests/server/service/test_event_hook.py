"""`on_event`: a person's own program hears of what waits and of what has ended, each once, and can hold up nothing."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from support import owner as owner_program
from support.model_server import Gate, ModelServer, Say, run_model_server
from support.processes import lives
from support.runtime import PRICED, Lab, open_lab, settings_of, submit, wait_for
from support.stdio import until

from ava_audit.events import Event, SpawnProposed, Who
from ava_audit.store.locks import try_hold
from ava_audit.store.store import append
from ava_server.config.keys import KEY_VARIABLES
from ava_server.config.settings import load_settings
from ava_server.core.errors import ConfigError
from ava_server.service import event_hook

pytestmark = pytest.mark.slow

FIELDS = ["event", "pending_id", "subagent_id", "user", "role", "task", "estimated_minutes", "max_cost_cents", "status"]


@pytest.fixture
def ears(tmp_path: Path) -> Ears:
    return Ears(tmp_path)


# -- what is told ------------------------------------------------------------------------------------------------------


async def test_reports_a_waiting_proposal_and_the_end_of_its_run(tmp_path: Path, ears: Ears) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say("x", gate=gate), submit()], config=ears.config) as lab:
        proposal = await lab.propose(task="What does it cost?\nIn \u202edollars " + "x" * 200, max_cost_cents=30)
        (event,) = await ears.until(1)
        assert list(event) == FIELDS
        assert event == {
            "event": "awaiting_approval",
            "pending_id": proposal.pending_id,
            "subagent_id": proposal.subagent_id,
            "user": lab.runtime.user,
            "role": "researcher",
            "task": ("What does it cost? In dollars " + "x" * 200)[:120] + "…",
            "estimated_minutes": {
                "min": proposal.estimated_minutes.min,
                "max": proposal.estimated_minutes.max,
            },
            "max_cost_cents": 30,
            "status": "awaiting_approval",
        }
        (call,) = ears.calls
        assert call["raw"].endswith("}\n") and call["raw"].count("\n") == 1, "one line"
        assert call["cwd"] == str(Path.home())

        await lab.approve(proposal)
        await wait_for(gate.arrived)
        assert len(ears.lines) == 1, "that it was approved and began is not told"
        gate.released.set()
        await lab.ended(proposal.subagent_id)
        events = await ears.until(2)
        assert events[1] == {**event, "event": "ended", "status": "success"}
        await marker(lab, ears, 2)


async def test_reports_no_cost_for_a_free_run(tmp_path: Path, ears: Ears) -> None:
    async with open_lab(tmp_path, config=ears.config.removesuffix(PRICED)) as lab:
        await lab.propose(max_cost_cents=30)
        (event,) = await ears.until(1)
        assert event["max_cost_cents"] == 0


async def test_reports_a_cancelled_run_as_ended(tmp_path: Path, ears: Ears) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say("x", gate=gate)], config=ears.config) as lab:
        run_id = await lab.start()
        await wait_for(gate.arrived)
        await lab.call("cancel_subagent", subagent_id=run_id, reason="enough")
        await lab.ended(run_id)
        await until(lambda: ("ended", run_id) in kinds(ears.events))
        assert ears.events[-1]["status"] == "cancelled"


async def test_reports_no_end_of_unstarted_runs_and_no_wait_of_auto_approved_ones(tmp_path: Path, ears: Ears) -> None:
    config = (
        f'proposal_ttl_s = 1\napproval = "auto"\nauto_approve_cents = 50\nauto_approve_daily_cents = 50\n{ears.config}'
        '\n[fetch]\nhosts = ["example.org"]\n'
    )
    async with open_lab(tmp_path, [submit()], config=config, check=False) as lab:
        at_once = await lab.call("spawn_subagent", role="researcher", task="small", max_cost_cents=50)
        assert at_once.status == "approved", at_once.message
        await lab.ended(at_once.subagent_id)
        assert kinds(await ears.until(1)) == [("ended", at_once.subagent_id)], "and nothing before it"

        rejected, expired = await lab.propose(task="no"), await lab.propose(task="too late")
        await ears.until(3)
        answer = await lab.call("confirm_spawn", pending_ids=[rejected.pending_id], decision="reject")
        assert answer.status == "rejected"

        await anyio.sleep(1.1)  # its time has to pass, and no event tells that it has
        late = await lab.approve(expired)
        assert late.status == "refused" and late.decisions[0].fresh, late
        fresh = (await ears.until(4))[3]
        assert (await lab.run(expired.subagent_id)).state == "expired"
        assert (fresh["event"], fresh["task"]) == ("awaiting_approval", "too late")
        await marker(lab, ears, 4)
        ended = [event for event in ears.events if event["event"] == "ended"]
        assert [event["subagent_id"] for event in ended] == [at_once.subagent_id]


async def test_a_runtime_that_executes_no_runs_sends_no_events(tmp_path: Path, ears: Ears) -> None:
    async with open_lab(tmp_path, config=ears.config, runs=False) as looking:
        await looking.propose(task="first")
        with anyio.move_on_after(2):
            await ears.until(1)
        assert ears.lines == []
    async with open_lab(tmp_path, config=ears.config, check=False) as lab:
        await marker(lab, ears, 0)


async def test_what_happens_before_the_hook_has_begun_is_told_too(tmp_path: Path, ears: Ears) -> None:
    root = tmp_path / "data"
    root.mkdir(mode=0o700)
    held = try_hold(root / "events.lock")
    assert held is not None
    async with open_lab(tmp_path, config=ears.config, check=False) as lab:
        first = await lab.propose(task="at once")
        held.release()
        assert kinds(await ears.until(1)) == [("awaiting_approval", first.subagent_id)]
        await marker(lab, ears, 1)


# -- each once ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def two_labs(tmp: Path, config: str, server: ModelServer) -> AsyncGenerator[tuple[Lab, Lab]]:
    async with (
        open_lab(tmp, server=server, config=config, check=False) as one,
        open_lab(tmp, server=server, config=config, check=False) as other,
    ):
        yield one, other


async def test_one_of_two_runtimes_sends_each_event_once(tmp_path: Path, ears: Ears) -> None:
    with run_model_server([submit()] * 4) as server:
        async with two_labs(tmp_path, ears.config, server) as labs:
            runs: list[str] = []
            for number in range(4):
                lab = labs[number % 2]
                proposal = await lab.propose(task=f"number {number}")
                await ears.until(2 * number + 1)
                await lab.approve(proposal)
                await lab.ended(proposal.subagent_id)
                await ears.until(2 * number + 2)
                runs.append(proposal.subagent_id)
            await marker(labs[1], ears, 8)
    told = kinds(ears.events)[:8]
    assert sorted(told) == sorted((kind, run) for run in runs for kind in ("awaiting_approval", "ended"))
    assert len(set(told)) == 8


@pytest.mark.parametrize("ends", [signal.SIGKILL, None])
async def test_another_process_takes_over_when_the_sender_is_gone(
    tmp_path: Path, ears: Ears, ends: signal.Signals | None
) -> None:
    with run_model_server([]) as server:
        settings_of(tmp_path / "data", None, ears.config)
        owner = await anyio.open_process(
            [sys.executable, owner_program.__file__, str(tmp_path / "data"), server.base_url]
        )
        assert owner.stdin is not None and owner.stdout is not None
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(owner)
            assert (await owner.stdout.receive()).startswith(b"open ")
            await until(lambda: held_by_another(tmp_path / "data" / "events.lock"))
            lab = await stack.enter_async_context(open_lab(tmp_path, server=server, config=ears.config, check=False))
            first = await lab.propose(task="first")
            await ears.until(1)
            await noted(lab)
            if ends is None:
                await owner.stdin.aclose()
            else:
                owner.send_signal(ends)
            await owner.wait()
            second = await lab.propose(task="second")
            waiting = [("awaiting_approval", one.subagent_id) for one in (first, second)]
            assert kinds(await ears.until(2)) == waiting
            await marker(lab, ears, 2)
        assert [call["parent"] for call in ears.calls] == [owner.pid, os.getpid(), os.getpid()]


async def test_the_next_process_sends_events_missed_while_none_was_running(tmp_path: Path, ears: Ears) -> None:
    async with open_lab(tmp_path, config=ears.config) as lab:
        await marker(lab, ears, 0)
    async with open_lab(tmp_path, config=ears.config, runs=False) as quiet:
        proposal = await quiet.propose(task="in between")
    async with open_lab(tmp_path, config=ears.config) as lab:
        assert kinds(await ears.until(2))[1:] == [("awaiting_approval", proposal.subagent_id)]
        await marker(lab, ears, 2)


async def test_does_not_send_old_events(tmp_path: Path, ears: Ears, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_lab(tmp_path, config=ears.config) as lab:
        await marker(lab, ears, 0)
    async with open_lab(tmp_path, config=ears.config, runs=False) as quiet:
        await quiet.propose(task="in between")
    monkeypatch.setattr(event_hook, "OLD_US", 0)
    async with open_lab(tmp_path, config=ears.config) as lab:
        await anyio.sleep(3 * event_hook.SETTLE_S)  # what must not come has no event
        monkeypatch.setattr(event_hook, "OLD_US", 600_000_000)
        await marker(lab, ears, 1)


# -- a program that is no good -----------------------------------------------------------------------------------------


async def test_kills_a_hanging_program_without_blocking_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_hook, "PROGRAM_S", 1.0)
    hangs = Ears(tmp_path, HANGS)
    with caplog.at_level(logging.WARNING, "ava.events"):
        async with open_lab(tmp_path, [submit()], config=hangs.config) as lab:
            first = await lab.propose(task="first")
            await until(lambda: hangs.lines)
            await lab.approve(first)  # while it hangs
            assert (await lab.ended(first.subagent_id)).state == "success"
            await until(lambda: len(hangs.lines) >= 2)
            pids = [int(pid) for pid in hangs.lines]
            assert not lives(pids[0])
            await until(lambda: sum("took longer than 1 s and was ended" in line for line in caplog.messages) >= 2)
            assert not any(map(lives, pids))


async def test_a_closing_runtime_kills_the_program_without_waiting(tmp_path: Path) -> None:
    hangs = Ears(tmp_path, HANGS)
    async with open_lab(tmp_path, config=hangs.config) as lab:
        await lab.propose()
        await until(lambda: hangs.lines)
        began = time.monotonic()
    assert time.monotonic() - began < event_hook.PROGRAM_S / 2
    assert not lives(int(hangs.lines[0]))


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (["/nowhere/at/all"], "cannot be run"),
        (["/etc/passwd"], "cannot be run"),
        ([""], "cannot be run"),
        (["no\0name"], "cannot be run"),
        (["/bin/false"], "ended with 1"),
        (["/bin/sh", "-c", "exec 0<&-; kill -9 $$"], "ended with -9"),
    ],
)
async def test_a_missing_or_failing_program_only_causes_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, program: list[str], says: str
) -> None:
    with caplog.at_level(logging.WARNING, "ava.events"):
        async with open_lab(tmp_path, [submit()], config=f"on_event = {json.dumps(program)}\n{PRICED}") as lab:
            proposal = await lab.propose()
            await until(lambda: any(says in line for line in caplog.messages))
            await lab.approve(proposal)
            assert (await lab.ended(proposal.subagent_id)).state == "success"
            await until(lambda: sum(says in line for line in caplog.messages) >= 2)
            assert all(line.startswith("on_event: ") for line in caplog.messages), caplog.messages


async def test_ignores_program_output_and_warns_once_per_failed_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    fails = Ears(tmp_path, FAILS)
    with caplog.at_level(logging.WARNING, "ava.events"):
        async with open_lab(tmp_path, config=fails.config) as lab:
            await lab.propose()
            await until(lambda: fails.lines)
            await noted(lab)
    assert [line.partition(" ended")[2] for line in caplog.messages] == [" with 7"]
    assert "may the model be told" not in "".join(capfd.readouterr())


# -- what it gets and does not get -------------------------------------------------------------------------------------


async def test_the_program_environment_contains_no_key(
    tmp_path: Path, ears: Ears, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (*KEY_VARIABLES, "AVA_KEY_X", "AVA_MODEL_API_KEY")
    keys = {name: f"sk-or-v1-{number:064x}" for number, name in enumerate(names)}
    for name, value in {**keys, "DISPLAY": ":7"}.items():
        monkeypatch.setenv(name, value)
    async with open_lab(tmp_path, config=ears.config) as lab:
        await marker(lab, ears, 0)
    (call,) = ears.calls
    assert call["env"]["DISPLAY"] == ":7" and call["env"]["PATH"] == os.environ["PATH"]
    assert not set(keys) & set(call["env"])
    assert not any(value in json.dumps(call) for value in keys.values())


async def test_passes_arguments_without_a_shell(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    args = [f"; touch {touched}", f"$(touch {touched})", f"`touch {touched}`", "*", "two words", "{pending_id}", ""]
    ears = Ears(tmp_path, HEARS, *args)
    async with open_lab(tmp_path, config=ears.config) as lab:
        await marker(lab, ears, 0)
    assert ears.calls[0]["args"] == args
    assert not touched.exists()


async def test_passes_model_text_to_the_program_as_one_line_of_json(tmp_path: Path, ears: Ears) -> None:
    async with open_lab(tmp_path, config=ears.config) as lab:
        await lab.propose(task='"}\n{"event": "ended", "status": "success"}\n\x1b[2J; rm -rf ~')
        (event,) = await ears.until(1)
    assert ears.calls[0]["raw"].count("\n") == 1
    assert event["event"] == "awaiting_approval" and "\x1b" not in event["task"]


def test_on_event_can_only_be_set_in_the_file(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with pytest.raises(ConfigError, match="AVA_ON_EVENT") as refused:
        settings_of(root, None, "", {"AVA_ON_EVENT": '["/bin/true"]'})
    assert "config.toml" in str(refused.value)
    settings_of(root, None, 'on_event = ["/bin/true", "x"]\n')
    assert load_settings(root, env={}).on_event == ("/bin/true", "x")


@pytest.mark.parametrize("wrong", ['"notify-send"', "[1]", "{a = 1}"])
def test_on_event_must_be_a_list_of_strings(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(ConfigError, match="on_event"):
        settings_of(tmp_path / "data", None, f"on_event = {wrong}\n")


async def test_skips_a_proposal_of_a_newer_version_and_reports_the_next(tmp_path: Path, ears: Ears) -> None:
    config = {"role": "researcher", "model": "fake:of-a-version-to-come"}
    proposed = SpawnProposed(pending_id="P-00000001", subagent_id="S-000001", digest="0", expires_us=0, config=config)
    async with open_lab(tmp_path, config=ears.config, check=False) as lab:
        await marker(lab, ears, 0)
        await lab.store.do(append(Event(Who("s", "ava", lab.runtime.user), proposed, run_id="S-000001")))
        await marker(lab, ears, 1)


HEARS = """
import json, os, sys
call = {"raw": sys.stdin.read(), "args": sys.argv[2:], "env": dict(os.environ), "cwd": os.getcwd()}
with open(sys.argv[1], "a") as file:
    file.write(json.dumps({**call, "parent": os.getppid()}) + "\\n")
"""


HANGS = """
import os, sys, time
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()}\\n")
while True:
    time.sleep(60)
"""


FAILS = """
import sys
with open(sys.argv[1], "a") as file:
    file.write("asked\\n")
print("may the model be told of this?")
sys.exit(7)
"""


class Ears:
    """A program, and what it has heard."""

    def __init__(self, folder: Path, source: str = HEARS, *args: str) -> None:
        self.script = folder / "program.py"
        self.script.write_text(source)
        self.heard = folder / "heard"
        self.argv = [sys.executable, "-I", str(self.script), str(self.heard), *args]

    @property
    def config(self) -> str:
        """`config.toml` with the program in it."""
        return f"on_event = {json.dumps(self.argv)}\n{PRICED}"

    @property
    def lines(self) -> list[str]:
        return self.heard.read_text().splitlines() if self.heard.exists() else []

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(call["raw"]) for call in self.calls]

    async def until(self, count: int, within_s: float = 40) -> list[dict[str, Any]]:
        """Wait until it has heard so much, and return it."""
        await until(lambda: len(self.lines) >= count, within_s)
        return self.events


def kinds(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(event["event"], event["subagent_id"]) for event in events]


def held_by_another(path: Path) -> bool:
    """Tell whether a process holds the lock at `path`."""
    held = try_hold(path) if path.exists() else None
    if held is not None:
        held.release()
    return path.exists() and held is None


async def noted(lab: Lab) -> None:
    """Wait until it is on the disk that all that has happened so far is told: who comes next begins after it."""
    head = lab.store.head
    with anyio.fail_after(40):
        while await lab.store.read(lambda view: view.progress("on_event")) < head:  # noqa: ASYNC110 - it is no entry
            await anyio.sleep(0.02)


async def marker(lab: Lab, ears: Ears, told: int) -> None:
    """Have something told that comes after all that was done, so that nothing more of that can come."""
    proposal = await lab.propose(task="the marker")
    events = await ears.until(told + 1)
    assert kinds(events)[told:] == [("awaiting_approval", proposal.subagent_id)], events
    await noted(lab)
