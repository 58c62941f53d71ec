"""Keys that change, or turn bad, while a server runs: what needs one says so, and all the rest goes on."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.model_server import Gate, Say
from support.runtime import hand_over, open_lab, settings_of, wait_for
from support.stdio import read_log, until

from ava_audit.events import RunClaimed, SpawnDecided, ToolResult
from ava_server.config.credentials import Credentials, model_settings
from ava_server.config.keys import set_key
from ava_server.core.errors import AvaError, BadInput, ConfigError
from ava_server.models.model_choice import choose

FIRST, SECOND = "the-first-key-of-all", "the-second-key-of-all"
"""Keys without the shape of one: they are hidden only where they are known."""


def half(keys: Path) -> None:
    write(keys, f'openrouter = "{SECOND[:9]}')


def loosened(keys: Path) -> None:
    keys.chmod(0o644)


def no_toml(keys: Path) -> None:
    write(keys, "a" * 10)


def nested(keys: Path) -> None:
    write(keys, "openrouter = " + "[" * 100_000)


def no_key(keys: Path) -> None:
    write(keys, 'openrouter = "short"\n')


def a_folder(keys: Path) -> None:
    keys.unlink()
    keys.mkdir()


def a_link(keys: Path) -> None:
    keys.rename(keys.with_name("elsewhere.toml"))
    keys.symlink_to("elsewhere.toml")


BROKEN = (half, loosened, no_toml, nested, no_key, a_folder, a_link)


@pytest.fixture(autouse=True)
def _no_keys_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AVA_KEY_") or name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)


# -- a file that turns bad --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoil", BROKEN)
async def test_a_broken_key_file_stops_only_what_needs_a_key(
    tmp_path: Path, keys: Path, spoil: Callable[[Path], None]
) -> None:
    async with open_lab(tmp_path, [hand_over()]) as lab:
        cancelled, rejected = await lab.propose(task="one"), await lab.propose(task="two")
        spoil(keys)

        failed = await lab.call("spawn_subagent", role="researcher", task=f"Use {FIRST}", workspace=str(lab.workspace))
        assert failed.status == "failed"
        assert str(keys) in failed.message
        assert ("chmod 600" in failed.message) == (spoil is loosened)
        assert (await lab.call("check_subagent")).status == "list"
        assert (await lab.call("read_ava_logs")).status == "entries"
        ended = await lab.call("cancel_subagent", pending_id=cancelled.pending_id, reason=f"it was {FIRST}")
        assert ended.status == "cancelled"
        decided = await lab.call("confirm_spawn", pending_ids=[rejected.pending_id], decision="reject")
        assert decided.status == "rejected"

        tools = {"spawn_subagent", "confirm_spawn", "check_subagent", "read_ava_logs", "cancel_subagent"}
        await until(lambda: all(tools <= tools_in(lab.root, kind) for kind in ("ToolCall", "ToolResult")))
        assert FIRST not in repr(read_log(lab.root)), "what was known stays hidden"


async def test_refuses_a_key_file_with_loose_permissions_and_accepts_it_once_fixed(tmp_path: Path, keys: Path) -> None:
    async with open_lab(tmp_path, [hand_over()]) as lab:
        await lab.propose()
        for _ in range(2):
            loosened(keys)
            given = {"role": "researcher", "task": "again", "workspace": str(lab.workspace)}
            refused = await lab.call("spawn_subagent", **given)
            assert (refused.status, f"chmod 600 {keys}" in refused.message) == ("failed", True)
            mended(keys)
            await lab.propose()


async def test_a_key_file_broken_from_the_start_is_reported_at_each_spawn(tmp_path: Path, keys: Path) -> None:
    half(keys)
    async with open_lab(tmp_path) as lab:
        for _ in range(2):
            answer = await lab.call("spawn_subagent", role="researcher", task="look", workspace=str(lab.workspace))
            assert (answer.status, str(keys) in answer.message) == ("failed", True)
        assert (await lab.call("check_subagent")).status == "list"


async def test_reports_a_started_run_as_started_if_the_key_file_breaks_afterwards(tmp_path: Path, keys: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say(calls=hand_over().calls, gate=gate)]) as lab:
        proposal = await lab.propose()
        answers: list[Any] = []

        async def confirm() -> None:
            answers.append(await lab.approve(proposal, wait_seconds=30))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(confirm)
            await wait_for(gate.arrived)
            half(keys)
            gate.released.set()
        assert answers[0].status == "approved"
        assert answers[0].decisions[0].status == "success"
        assert answers[0].runs[0]["untrusted_result"]["output"] == "the answer"
        assert "confirm_spawn" in tools_in(lab.root, "ToolResult")


async def test_an_approved_run_waits_until_the_key_file_is_fixed(tmp_path: Path, keys: Path) -> None:
    async with open_lab(tmp_path, [hand_over()]) as lab:
        proposal = await lab.propose()
        loosened(keys)
        assert (await lab.approve(proposal)).status == "approved"
        run_id = proposal.subagent_id
        waits_for = await until(lambda: lab.runtime.manager.waiting_for.get(run_id))
        assert f"chmod 600 {keys}" in waits_for
        (run,) = (await lab.call("check_subagent", subagent_id=run_id)).runs
        assert (run.state, run.waits_for) == ("queued", waits_for)
        assert await lab.facts(run_id, RunClaimed) == []
        mended(keys)
        assert (await lab.ended(run_id)).state == "success"


async def test_reports_an_expired_proposal_even_if_no_new_one_can_be_made(tmp_path: Path, keys: Path) -> None:
    async with open_lab(tmp_path, config="proposal_ttl_s = 1") as lab:
        proposal = await lab.propose()
        await anyio.sleep_until(anyio.current_time() + 1.05)  # the time that it has to live
        loosened(keys)
        answer = await lab.approve(proposal)
        (decision,) = answer.decisions
        assert (answer.status, decision.status, decision.fresh) == ("refused", "refused", None)
        assert "it expired, and no new proposal can be made" in decision.refused_because
        assert f"chmod 600 {keys}" in decision.refused_because
        assert [fact.decision for fact in await lab.facts(proposal.subagent_id, SpawnDecided)] == ["expired"]


async def test_an_invalid_key_in_a_variable_stops_only_what_would_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAGI_API_KEY", "short")  # of a provider that nothing asks
    monkeypatch.setenv("BRAVE_API_KEY", f"Bearer {SECOND}")
    async with open_lab(tmp_path) as lab:
        proposal = await lab.propose(task=f"Is it Bearer {SECOND}?")
        assert SECOND not in proposal.approval_line, "what is no key is hidden all the same"
    monkeypatch.setenv("AVA_KEY_OPENAI", "short")
    async with open_lab(tmp_path) as lab:
        answer = await lab.call("spawn_subagent", role="researcher", task="look", workspace=str(lab.workspace))
        assert (answer.status, "AVA_KEY_OPENAI does not hold a key" in answer.message) == ("failed", True)
        assert (await lab.call("check_subagent")).status == "list"
        assert (await lab.call("read_ava_logs")).status == "entries"
        assert (await lab.call("cancel_subagent", pending_id=proposal.pending_id)).status == "cancelled"


async def test_a_placeholder_key_stops_no_spawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "dummy")
    monkeypatch.setenv("OPENAI_API_KEY", "placeholder")
    async with open_lab(tmp_path) as lab:
        proposal = await lab.propose(task="What is a placeholder?")
        assert proposal.model == "custom:test" and "a placeholder" in proposal.approval_line
        given = {"role": "researcher", "task": "look", "workspace": str(lab.workspace)}
        refused = await lab.call("spawn_subagent", **given, model="anthropic:claude-opus-5-5")
        assert "ANTHROPIC_API_KEY is not used, because its value is not a key" in refused.message


async def test_a_gateways_key_is_never_sent_to_a_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = f"{SECOND}-4471"
    monkeypatch.setenv("ANTHROPIC_API_KEY", theirs)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://gateway.example:4000")
    settings = settings_of(tmp_path / "data", None, '[providers.local]\nbase_url = "http://127.0.0.1:9/v1"\n')
    found = model_settings(settings)
    assert found.providers["anthropic"].api_key is None
    with pytest.raises(BadInput, match=r"ANTHROPIC_API_KEY is not used: ANTHROPIC_BASE_URL .* gateway\.example"):
        choose("anthropic:claude-opus-5-5", "deep", found)
    own = settings_of(
        tmp_path / "data", None, '[providers.anthropic]\nbase_url = "http://gateway.example:4000/v1"\nwire = "messages"'
    )
    assert model_settings(own).providers["anthropic"].api_key == theirs


# -- keys that come and go --------------------------------------------------------------------------------------------


async def test_a_running_run_redacts_a_key_stored_in_the_meantime(tmp_path: Path, keys: Path) -> None:
    gate = Gate()
    reads = Say(calls=[("read_file", {"path": "notes.md"})], gate=gate)
    async with open_lab(tmp_path, [reads, hand_over()]) as lab:
        (lab.workspace / "notes.md").write_text(f"It was {FIRST}, and it is {SECOND}.\n")
        run_id = await lab.start(role="code_reviewer")
        await wait_for(gate.arrived)
        await anyio.to_thread.run_sync(set_key, "openrouter", SECOND, keys)
        await lab.call("check_subagent")
        gate.released.set()
        await lab.ended(run_id)
        result, *_ = await lab.facts(run_id, ToolResult)
        assert "It was [redacted:openrouter], and it is [redacted:openrouter]." in result.output
        assert SECOND.encode() not in lab.server.requests[1].body


def access_of(keys: Path) -> Credentials:
    return Credentials(settings_of(keys.parent, None))


def seen(credentials: Credentials) -> tuple[str | None, str]:
    """The key that a model is asked with, and what is left of a text that names every key."""
    text, _count = credentials.redactor.redact(f"{FIRST} {SECOND}")
    return credentials.models.providers["openrouter"].api_key, text


def test_a_replaced_or_removed_key_stays_redacted(keys: Path) -> None:
    credentials = access_of(keys)
    assert credentials.models.providers["openrouter"].api_key == FIRST
    set_key("openrouter", SECOND, keys)
    assert credentials.models.providers["openrouter"].api_key == SECOND
    keys.unlink()
    assert seen(credentials) == (None, "[redacted:openrouter] [redacted:openrouter]")
    half(keys)
    assert credentials.redactor.redact(FIRST)[0] == "[redacted:openrouter]"
    with pytest.raises(ConfigError, match="not valid TOML"):
        _ = credentials.models


def test_detects_an_overwritten_file_even_if_its_mtime_is_reset(keys: Path) -> None:
    credentials = access_of(keys)
    write(keys, f'openrouter = "{SECOND}"\n')
    assert credentials.models.providers["openrouter"].api_key == SECOND
    before = keys.stat()
    other = SECOND.replace("second", "secoND")
    with keys.open("r+") as file:
        file.write(f'openrouter = "{other}"\n')
    os.utime(keys, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert credentials.models.providers["openrouter"].api_key == other


def test_models_and_redacted_keys_come_from_the_same_read(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    versions = [f"version-{number:03}-of-all-keys" for number in range(200)]

    def store(*versions: str) -> None:
        for version in versions:
            new = tmp_path / "new.toml"
            write(new, f'openai = "{version}"\nopenrouter = "{version}"\n')
            new.replace(keys)

    store(versions[0])
    credentials = access_of(keys)
    writer = threading.Thread(target=store, args=versions)
    writer.start()
    looked = 0
    while writer.is_alive() or looked == 0:
        providers = credentials.models.providers
        key = providers["openai"].api_key
        assert key is not None and key == providers["openrouter"].api_key
        assert credentials.redactor.redact(key)[1] == 1
        looked += 1
    writer.join(30)
    assert credentials.models.providers["openai"].api_key == versions[-1]


# -- what it costs ----------------------------------------------------------------------------------------------------


@contextmanager
def opened(path: Path) -> Generator[list[int]]:
    """The threads that open a file until the block ends."""
    threads: list[int] = []
    listening = True

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if listening and event == "open" and str(args[0]) == str(path):
            threads.append(threading.get_ident())

    sys.addaudithook(hook)
    try:
        yield threads
    finally:
        listening = False


async def test_reads_the_file_only_after_a_change_and_never_on_the_event_loop(tmp_path: Path, keys: Path) -> None:
    async with open_lab(tmp_path) as lab:
        await lab.call("check_subagent")
        with opened(keys) as threads:
            for _ in range(3):
                await lab.call("read_ava_logs", search="one", types=["ToolCall", "ToolResult"])
                await lab.propose(task="look")
            assert threads == []
            mended(keys, 0o400)
            await lab.call("read_ava_logs", search="one", types=["ToolCall", "ToolResult"])
            await lab.call("check_subagent")
            assert len(threads) == 1
            loosened(keys)
            await lab.call("check_subagent")
            await lab.call("check_subagent")
            assert len(threads) == 2, "a broken one is not read again and again"
            with pytest.raises(AvaError):
                await anyio.to_thread.run_sync(lambda: lab.runtime.credentials.models)
            assert threading.get_ident() not in threads


def write(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text, "utf-8")
    path.chmod(mode)


def mended(keys: Path, mode: int = 0o600) -> None:
    keys.chmod(mode)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """`keys.toml` of the lab's data root, with one key in it."""
    (tmp_path / "data").mkdir(mode=0o700)
    set_key("openrouter", FIRST, tmp_path / "data" / "keys.toml")
    return tmp_path / "data" / "keys.toml"


def tools_in(root: Path, kind: str) -> set[str]:
    """The tools that the log names in entries of a type."""
    return {entry.content["tool"] for entry in read_log(root, kind)}
