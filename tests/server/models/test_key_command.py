"""A key that a command prints: run when it is due, once for all, outside the sandbox, and never shown.

What others could have written is never run: a program in the project, or in a folder that everybody can write to.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.model_server import Fail, Gate, ModelServer, Say, Step, run_model_server
from support.processes import lives
from support.runtime import Lab, open_lab, settings_of, submit
from support.terminal import ava

from ava_audit.events import CostReserved, RunStarted
from ava_server.config.credentials import Credentials, model_settings
from ava_server.config.settings import load_settings
from ava_server.core.errors import ConfigError, ModelError
from ava_server.core.own_program import checked_command
from ava_server.models import key_command as module
from ava_server.models.key_command import KeyCommand, KeyCommandFailed
from ava_server.models.model_choice import choose, configured

TOKEN = "ya29.minted-{}-x8Qd0FkU2mWb"
PRINTS = """
import json, os, pathlib, sys
here = pathlib.Path(sys.argv[1])
with open(here / "ran", "a") as file:
    file.write(json.dumps({"env": dict(os.environ), "cwd": os.getcwd()}) + "\\n")
print(f"ya29.minted-{(here / 'epoch').read_text()}-x8Qd0FkU2mWb")
"""


def refused(body: Any = None) -> Fail:
    return Fail(401, body or {"error": {"message": "the token has expired", "code": "UNAUTHENTICATED"}})


@pytest.fixture
def minter(tmp_path: Path) -> Minter:
    folder = tmp_path / "minter"
    folder.mkdir()
    return Minter(folder)


# -- a key that expires --------------------------------------------------------------------------------------------


async def test_a_key_that_expires_in_the_middle_of_twenty_runs_is_renewed_once(tmp_path: Path, minter: Minter) -> None:
    servers: list[ModelServer] = []
    together = Gate()
    begun = 0

    def script(body: dict[str, Any]) -> Step:
        nonlocal begun
        if not minter.accepts(servers[0]):
            return refused()
        if any(message["role"] == "tool" for message in body["messages"]):
            return submit()
        begun += 1
        if begun == 20:  # all have asked: the key expires while every answer is on its way
            minter.epoch = 2
            together.released.set()
        return Say(calls=[("list_files", {})], gate=together)

    with run_model_server(script) as server:
        servers.append(server)
        async with open_lab(tmp_path, server=server, config=config(server, minter.argv)) as lab:
            ids = [await lab.start(model="own:test", task=f"task {number}") for number in range(20)]
            states = [(await lab.ended(run_id)).state for run_id in ids]
            text = await stored_text(lab)
            reserved = [await lab.facts(run_id, CostReserved) for run_id in ids]
    assert states == ["success"] * 20
    assert len(minter.runs) == 2, "one key to begin with, one when it had expired"
    assert sum(map(len, reserved)) == len(server.requests) > 40, "each request that was refused has its own reservation"
    assert "minted" not in text
    assert not any(b"minted" in request.body for request in server.requests)


async def test_a_key_is_renewed_after_its_time(tmp_path: Path, minter: Minter) -> None:
    key = KeyCommand("own", tuple(minter.argv), 60)
    assert await key.key() == await key.key() == TOKEN.format(1)
    assert key.runs == 1
    key = KeyCommand("own", tuple(minter.argv), 0)
    assert await key.key() == TOKEN.format(1)
    minter.epoch = 2
    assert await key.key() == TOKEN.format(2)


async def test_calls_at_the_same_time_share_one_run_and_its_failure(tmp_path: Path) -> None:
    noted = tmp_path / "ran"
    key = command(f"import sys, time; open({str(noted)!r}, 'a').write('x'); time.sleep(0.3); sys.exit(3)")
    errors = []

    async def ask() -> None:
        with pytest.raises(KeyCommandFailed) as failed:
            await key.key()
        errors.append(str(failed.value))

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(ask)
    assert errors == ["it ended with 3"] * 20
    assert noted.read_text() == "x"


async def test_a_call_that_is_cancelled_while_the_command_runs_leaves_it_to_the_next(tmp_path: Path) -> None:
    noted = tmp_path / "ran"
    key = command(f"""
import os, time
first = not os.path.exists({str(noted)!r})
open({str(noted)!r}, 'a').write('x')
time.sleep(60 if first else 0)
print('ya29.minted-for-the-second')
""")
    got: list[str] = []

    async def ask() -> None:
        got.append(await key.key())

    async with anyio.create_task_group() as tasks:
        first = anyio.CancelScope()

        async def ask_first() -> None:
            with first:
                await key.key()

        tasks.start_soon(ask_first)
        with anyio.fail_after(8):
            while not noted.exists():  # noqa: ASYNC110 - another process writes it
                await anyio.sleep(0.02)
            tasks.start_soon(ask)
            await anyio.sleep(0.1)
            first.cancel()
    assert got == ["ya29.minted-for-the-second"]
    assert noted.read_text() == "xx"


async def test_a_provider_that_refuses_every_key_gets_two(tmp_path: Path) -> None:
    code = "import time; print('ya29.other-' + str(time.monotonic_ns()))"
    with run_model_server(lambda _body: refused()) as server:
        argv = [sys.executable, "-I", "-c", code]
        async with open_lab(tmp_path, server=server, config=config(server, argv)) as lab:
            run_id = await lab.start(model="own:test")
            run = await lab.ended(run_id)
            result = await lab.result(run_id)
    assert run.state == "error" and result["error"]["kind"] == "auth", result
    assert len(server.requests) == 2
    keys = {request.headers["authorization"] for request in server.requests}
    assert len(keys) == 2


async def test_a_provider_that_refuses_the_same_key_again_is_asked_once(tmp_path: Path, minter: Minter) -> None:
    with run_model_server(lambda _body: refused()) as server:
        async with open_lab(tmp_path, server=server, config=config(server, minter.argv)) as lab:
            run = await lab.ended(await lab.start(model="own:test"))
    assert run.state == "error"
    assert len(server.requests) == 1 and len(minter.runs) == 2


# -- a command that fails ------------------------------------------------------------------------------------------

SECRET = "ya29.secret-of-the-command"
BAD: dict[str, tuple[str, str]] = {
    "nothing": ("", "it printed nothing"),
    "blank": ("print('   ')", "it printed nothing"),
    "two lines": (f"print('{SECRET}'); print('{SECRET}')", "more than one line"),
    "a huge text": (f"print('{SECRET}' * 100_000)", "it printed more than 16,384 characters"),
    "a sentence": (f"print('Your token is {SECRET}')", "what it printed is not a key"),
    "a header to smuggle": (f"print('{SECRET}\\tx-other: 1')", "what it printed is not a key"),
    "other letters": (
        f"import sys; sys.stdout.buffer.write(('{SECRET}' + 'ü').encode())",
        "what it printed is not a key",
    ),
    "an exit code": (f"import sys; print('{SECRET}'); print('{SECRET}', file=sys.stderr); sys.exit(7)", "ended with 7"),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_command_that_fails_is_one_sentence_without_its_output(
    tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, sentence = BAD[case]
    with run_model_server([]) as server:
        argv = [sys.executable, "-I", "-c", code.replace(SECRET, "ya29.secret' + '-of-the-command")]
        async with open_lab(tmp_path, server=server, config=config(server, argv)) as lab:
            run_id = await lab.start(model="own:test")
            run = await lab.ended(run_id)
            result = await lab.result(run_id)
            text = await stored_text(lab)
    assert run.state == "error" and run.cost_micros == 0
    assert f"was not called: its key comes from {sys.executable}, and " in text and sentence in text
    assert not server.requests, "nothing is sent without its key"
    assert SECRET not in text + caplog.text + repr(result)


async def test_a_command_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMMAND_S", 1.0)
    noted = tmp_path / "pid"
    code = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({str(noted)!r}, "w").write(str(child.pid))
time.sleep(60)
"""
    with anyio.fail_after(8), pytest.raises(KeyCommandFailed, match="took longer than 1 s") as failed:
        await command(code).key()
    assert failed.value.again
    with anyio.fail_after(8):
        while lives(int(noted.read_text())):  # noqa: ASYNC110 - another process
            await anyio.sleep(0.05)


async def test_a_run_that_is_cancelled_while_its_command_runs_pays_nothing(tmp_path: Path) -> None:
    noted = tmp_path / "ran"
    code = f"import time; open({str(noted)!r}, 'w').write('x'); time.sleep(60)"
    with run_model_server([]) as server:
        argv = [sys.executable, "-I", "-c", code]
        async with open_lab(tmp_path, server=server, config=config(server, argv)) as lab:
            run_id = await lab.start(model="own:test")
            with anyio.fail_after(20):
                while not noted.exists():  # noqa: ASYNC110 - another process writes it
                    await anyio.sleep(0.02)
            await lab.call("cancel_subagent", subagent_id=run_id)
            run = await lab.ended(run_id)
    assert run.state == "cancelled" and run.cost_micros == 0 and not server.requests


async def test_the_command_gets_home_and_path_and_no_other_variable(
    minter: Minter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-the-command")
    monkeypatch.setenv("AVA_KEY_OWN", "key-not-for-the-command")
    await KeyCommand("own", tuple(minter.argv), 60).key()
    [run] = minter.runs
    assert {name for name in run["env"] if name not in ("LC_CTYPE", "__CF_USER_TEXT_ENCODING")} <= {
        "HOME",
        "PATH",
        "AVA_PROGRAM",
    }
    assert all(Path(folder).is_absolute() for folder in run["env"]["PATH"].split(os.pathsep))
    assert run["cwd"] == str(Path.home())


# -- where the key may be seen ---------------------------------------------------------------------------------------


async def test_a_provider_that_repeats_the_key_shows_it_nowhere(
    tmp_path: Path, minter: Minter, caplog: pytest.LogCaptureFixture
) -> None:
    token = TOKEN.format(1)
    steps = [
        Say(f"the key is {token}", calls=[("list_files", {"pattern": token})]),
        submit(f"the key is {token}", summary=f"it is {token}"),
    ]
    with run_model_server(steps) as server:
        async with open_lab(tmp_path, server=server, config=config(server, minter.argv)) as lab:
            result = await lab.outcome(model="own:test")
    assert token not in repr(result) + caplog.text


async def test_an_error_that_repeats_the_key_does_not_show_it(tmp_path: Path, minter: Minter) -> None:
    token = TOKEN.format(1)
    answer = Fail(403, {"error": {"message": f"the credential {token} may not use this project"}})
    with run_model_server([answer]) as server:
        async with open_lab(tmp_path, server=server, config=config(server, minter.argv)) as lab:
            run_id = await lab.start(model="own:test")
            await lab.ended(run_id)
            text = await stored_text(lab) + repr(await lab.result(run_id))
    assert "may not use this project" in text and token not in text


async def test_the_redactor_learns_the_key_before_it_is_used(tmp_path: Path, minter: Minter) -> None:
    with run_model_server([]) as server:
        settings = settings_of(tmp_path / "data", None, config(server, minter.argv))
    credentials = Credentials(settings)
    choice = choose("own:test", "balanced", credentials.models)
    assert choice.key_command is not None and choice.key_command is credentials.models.providers["own"].key_command
    await choice.key_command.key()
    assert TOKEN.format(1) not in credentials.redactor.redact(f"a {TOKEN.format(1)} b")[0]
    assert TOKEN.format(1) not in repr(choice) + repr(credentials.models)


async def test_the_proposal_shows_that_the_key_comes_from_a_command(tmp_path: Path, minter: Minter) -> None:
    with run_model_server([submit()]) as server:
        async with open_lab(tmp_path, server=server, config=config(server, minter.argv)) as lab:
            proposal = await lab.propose(model="own:test")
            await lab.approve(proposal)
            await lab.ended(str(proposal.subagent_id))
            started = await lab.facts(str(proposal.subagent_id), RunStarted)
    assert "Its key comes from a command, which Ava runs outside the sandbox" in proposal.model_dump_json()
    assert "mint.py" in proposal.model_dump_json()
    assert "mint.py" not in repr(started)


async def test_a_run_is_not_done_with_another_command_than_was_approved(tmp_path: Path, minter: Minter) -> None:
    with run_model_server([submit()]) as server:
        async with open_lab(tmp_path, server=server, config=config(server, minter.argv), runs=False) as lab:
            run_id = await lab.start(model="own:test")
        other = config(server, [*minter.argv, "another"])
        async with open_lab(tmp_path, server=server, config=other) as lab:
            await lab.in_state(run_id, "interrupted", "failed", "queued")
            with anyio.move_on_after(2):
                await lab.ended(run_id)
            assert (await lab.run(run_id)).state != "success"
    assert not server.requests


# -- what others could have written ------------------------------------------------------------------------------------


def program(folder: Path, mode: int = 0o755) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    file = folder / "token-helper"
    file.write_text("#!/bin/sh\necho ya29.minted-by-a-helper\n")
    file.chmod(mode)
    return file


def attacked_file(tmp_path: Path) -> list[str]:
    return [str(program(tmp_path / "own", 0o777))]


def attacked_folder(tmp_path: Path) -> list[str]:
    file = program(tmp_path / "own")
    file.parent.chmod(0o777)
    return [str(file)]


def attacked_folder_above(tmp_path: Path) -> list[str]:
    file = program(tmp_path / "open" / "own")
    file.parent.parent.chmod(0o777)
    return [str(file)]


def attacked_target(tmp_path: Path) -> list[str]:
    target = program(tmp_path / "open", 0o777)
    link = tmp_path / "link"
    link.symlink_to(target)
    return [str(link)]


def attacked_script(tmp_path: Path) -> list[str]:
    return ["/bin/sh", str(program(tmp_path / "own", 0o777))]


def attacked_owner(tmp_path: Path) -> list[str]:
    file = program(tmp_path / "own")
    os.chown(file, 4_242, 4_242)
    return [str(file)]


def attacked_link_between(tmp_path: Path) -> list[str]:
    own = program(tmp_path / "own")
    between = tmp_path / "open" / "between"
    between.parent.mkdir()
    between.symlink_to(own)
    between.parent.chmod(0o777)
    (tmp_path / "first").symlink_to(between)
    return [str(tmp_path / "first")]


def attacked_link_of_another_in_a_sticky_folder(tmp_path: Path) -> list[str]:
    own = program(tmp_path / "own")
    link = tmp_path / "tmp" / "link"
    link.parent.mkdir()
    link.symlink_to(own)
    os.lchown(link, 4_242, 4_242)
    link.parent.chmod(0o777 | stat.S_ISVTX)
    return [str(link)]


def attacked_group(tmp_path: Path) -> list[str]:
    file = program(tmp_path / "own")
    os.chown(file.parent, -1, 4_242)
    file.parent.chmod(0o775)
    return [str(file)]


def attacked_after_equals(tmp_path: Path) -> list[str]:
    return ["/bin/echo", f"--file={program(tmp_path / 'own', 0o777)}"]


def attacked_in_a_shell(tmp_path: Path) -> list[str]:
    return ["/bin/sh", "-c", f". {program(tmp_path / 'own', 0o777)}; echo token-of-a-shell"]


ATTACKS: tuple[Callable[[Path], list[str]], ...] = (
    attacked_file, attacked_folder, attacked_folder_above, attacked_target, attacked_script, attacked_owner,
    attacked_link_between, attacked_link_of_another_in_a_sticky_folder, attacked_group, attacked_after_equals,
    attacked_in_a_shell,
)  # fmt: skip


@pytest.mark.skipif(sys.platform == "win32", reason="modes of files are POSIX")
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_a_program_that_others_can_change_is_not_run(tmp_path: Path, attack: Callable[[Path], list[str]]) -> None:
    gives = (attacked_owner, attacked_group, attacked_link_of_another_in_a_sticky_folder)
    if attack in gives and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    key = KeyCommand("own", tuple(attack(tmp_path)), 60)
    with pytest.raises(KeyCommandFailed, match=r"every user can write to|belongs to another user|of its group"):
        await key.key()
    assert key.runs == 0


def test_a_sticky_folder_above_a_program_is_like_tmp(tmp_path: Path) -> None:
    file = program(tmp_path / "open" / "own")
    file.parent.parent.chmod(0o777 | stat.S_ISVTX)
    assert checked_command([str(file)]).argv == (str(file),)


def test_a_relative_path_and_an_unknown_program_are_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f".:{os.environ['PATH']}")
    for name in ("token-helper", "no-such-program-anywhere"):
        with pytest.raises(ConfigError, match="not found on the PATH"):
            checked_command([name])


@pytest.mark.skipif(sys.platform == "win32", reason="a script of a shell")
@pytest.mark.parametrize("words", [["token-helper"], ["env", "PROFILE=work", "token-helper"]], ids=["itself", "by env"])
async def test_no_program_of_a_project_on_the_path_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    project, own = tmp_path / "project", tmp_path / "own"
    evil = program(project / "bin")
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/stolen\necho ya29.minted-by-the-project\n")
    program(own)
    monkeypatch.setenv("PATH", os.pathsep.join([str(evil.parent), ".", str(own), os.environ["PATH"]]))
    key = KeyCommand("own", tuple(words), 60)
    approved = key.checked(project, tmp_path / "data")
    assert Path(approved[0]).is_absolute() and not Path(approved[0]).is_relative_to(project)
    assert await key.key() == "ya29.minted-by-a-helper"
    assert not (tmp_path / "stolen").exists()
    monkeypatch.chdir(project)  # a host starts Ava in the project, and a run may have no workspace
    assert await KeyCommand("own", tuple(words), 60).key() == "ya29.minted-by-a-helper"
    assert not (tmp_path / "stolen").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="sessions are POSIX")
@pytest.mark.parametrize(
    "own_session", [False, pytest.param(True, marks=pytest.mark.skipif(sys.platform != "linux", reason="by /proc"))]
)
async def test_a_key_counts_though_the_command_left_a_process_behind(tmp_path: Path, own_session: bool) -> None:
    noted = tmp_path / "pid"
    code = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session={own_session})
open({str(noted)!r}, "w").write(str(child.pid))
print("ya29.minted-and-left")
"""
    with anyio.fail_after(5):
        assert await command(code).key() == "ya29.minted-and-left"
        while lives(int(noted.read_text())):  # noqa: ASYNC110 - another process
            await anyio.sleep(0.05)


async def test_a_failed_command_pauses_and_an_old_key_counts_until_it_is_refused(tmp_path: Path) -> None:
    noted = tmp_path / "ran"
    key = command(
        f"import os, sys; first = not os.path.exists({str(noted)!r}); open({str(noted)!r}, 'a').write('x');"
        "print('ya29.minted-once') if first else sys.exit(3)",
        ttl_s=0,
    )
    assert await key.key() == await key.key() == await key.key() == "ya29.minted-once"
    assert noted.read_text() == "xx", "the command that failed is not run for each call"
    assert not await key.renew("ya29.minted-once")
    with pytest.raises(KeyCommandFailed):
        await key.key()


async def test_a_key_that_is_printed_again_after_its_refusal_is_forgotten(minter: Minter) -> None:
    key = KeyCommand("own", tuple(minter.argv), 60)
    old = await key.key()
    assert not await key.renew(old)
    with pytest.raises(KeyCommandFailed, match="refused"):
        await key.key()
    assert len(minter.runs) == 2
    key._failed_s -= module.PAUSE_S  # the pause is over
    minter.epoch = 2
    assert await key.key() == TOKEN.format(2)


REFUSALS = {
    "expired": Fail(403, {"error": {"message": "The security token has Expired"}}),
    "AWS": Fail(403, {"message": "The security token included in the request is expired"}),
    "Databricks": Fail(403, {"error_code": 403, "message": "Invalid Token"}),
    "revoked": Fail(403, {"error": {"message": "This access token was revoked."}}),
    "credentials": Fail(403, {"detail": "Invalid authentication credentials"}),
    "Google": Fail(400, [{"error": {"code": 400, "message": "API key expired. Please renew the API key.",
                                    "status": "INVALID_ARGUMENT", "details": [{"reason": "API_KEY_INVALID"}]}}]),
    "xAI": Fail(400, {"code": "Client specified an invalid argument",
                      "error": "Incorrect API key provided: ya***Wb. You can obtain an API key from https://x."}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
async def test_a_refusal_of_the_key_itself_renews_it(tmp_path: Path, minter: Minter, name: str) -> None:
    servers: list[ModelServer] = []

    def script(_body: dict[str, Any]) -> Step:
        if minter.epoch == 1:
            minter.epoch = 2
            return REFUSALS[name]
        return submit()

    with run_model_server(script) as server:
        servers.append(server)
        async with open_lab(tmp_path, server=server, config=config(server, minter.argv)) as lab:
            run = await lab.ended(await lab.start(model="own:test"))
        assert minter.accepts(server)
    assert run.state == "success"


NOT_THE_KEY = [
    Fail(403, {"error": {"message": "The model is not available in your region"}}),
    Fail(403, {"error": {"message": "Project does not have access to model gpt-6"}}),
    Fail(400, {"error": {"message": "Invalid token in the request's JSON at position 5"}}),
]


@pytest.mark.parametrize("refusal", NOT_THE_KEY)
async def test_what_is_not_about_the_key_runs_no_command_again(tmp_path: Path, minter: Minter, refusal: Fail) -> None:
    with run_model_server([refusal]) as server:
        async with open_lab(tmp_path, server=server, config=config(server, minter.argv)) as lab:
            run = await lab.ended(await lab.start(model="own:test"))
    assert run.state == "error" and len(minter.runs) == 1


@pytest.mark.parametrize("fail", [refused(), Fail(403, {}), REFUSALS["xAI"], REFUSALS["Google"]])
async def test_a_refused_key_of_a_command_is_answered_with_the_command(
    tmp_path: Path, minter: Minter, fail: Fail
) -> None:
    with run_model_server([fail] * 3) as server:
        async with open_lab(tmp_path, server=server, config=config(server, minter.argv)) as lab:
            result = await lab.outcome(model="own:test")
    step = result["error"]["what_to_do"]
    assert "have its `key_command` print a valid key" in step.lower() and "ava key set" not in step


def test_no_error_and_no_repr_has_a_part_of_a_key_of_a_command() -> None:
    from ava_server.core.own_program import ProgramEnd
    from ava_server.models.errors import Endpoint

    endpoint = Endpoint("https://own.example/v1", "test", SECRET, minted=True)
    shown = endpoint.key + repr(endpoint) + repr(ProgramEnd(0, SECRET.encode())) + repr(module._Key(SECRET, 0.0))
    assert "ya29" not in shown


def test_a_variable_sends_no_stored_key_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ava_server.config.keys import Key

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("AVA_KEY_OPENAI", raising=False)
    stored = {"openai": Key("openai", "keys.toml", SECRET)}
    for address, sent in (
        ("https://api.openai.com.evil.example/v1", False),
        ("http://api.openai.com/v1", False),
        ("https://api.openai.com/v1", True),
    ):
        settings = load_settings(tmp_path, env={"AVA_PROVIDERS__OPENAI__BASE_URL": address})
        found = model_settings(settings, stored).providers["openai"]
        assert (found.api_key == SECRET) is sent, address
    (tmp_path / "config.toml").write_text('[providers.openai]\nbase_url = "https://own.example/v1"\n')
    assert model_settings(load_settings(tmp_path, env={}), stored).providers["openai"].api_key == SECRET


@pytest.mark.parametrize("name", ["my-gateway", "My-Gateway", "my_gateway", "bedrock-claude"])
def test_however_a_table_is_spelled_a_variable_sends_its_stored_key_nowhere(tmp_path: Path, name: str) -> None:
    """A key is stored under the name in lower case with `_`."""
    from ava_server.config.keys import Key, provider_name

    key = provider_name(name)
    stored = {key: Key(key, "keys.toml", SECRET)}
    (tmp_path / "config.toml").write_text(f'[providers.{name}]\nbase_url = "https://own.example/v1"\n')
    assert model_settings(load_settings(tmp_path, env={}), stored).providers[name].api_key == SECRET
    elsewhere = {f'AVA_PROVIDERS__"{name}"__BASE_URL': "https://evil.example/v1"}
    found = model_settings(load_settings(tmp_path, env=elsewhere), stored).providers[name]
    assert found.base_url == "https://evil.example/v1" and found.api_key is None
    assert "the stored key is not sent to the address" in (found.unused_key or "")


@pytest.mark.parametrize(
    ("address", "known"),
    [
        ("https://api.openai.com/v1", True),
        ("https://api.openai.com.evil.example/v1", False),
        ("https://api.openai.com@evil.example/v1", False),
        ("https://evil.example/x.googleapis.com/v1", False),
        ("https://eu-aiplatform.googleapis.com/v1", True),
        ("https://api.moonshot.ai/v1", True),
        ("https://api.moonshot.ai.evil.example/v1", False),
        ("https://router.huggingface.co/groq/v1", True),
        ("https://our.openai.azure.com/openai/v1", True),
        ("https://our.openai.azure.com.evil.example/v1", False),
        ("https://bedrock-runtime.eu-west-1.amazonaws.com/openai/v1", True),
    ],
)
def test_prices_are_those_of_the_host(address: str, known: bool) -> None:
    from ava_server.models.prices import known_ids

    assert bool(known_ids("own", address)) is known


async def test_a_program_of_the_project_is_refused_before_the_proposal(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    file = program(tmp_path / "workspace" / "bin")
    with run_model_server([]) as server:
        async with open_lab(tmp_path, server=server, config=config(server, [str(file)])) as lab:
            answer = await lab.call(
                "spawn_subagent", role="researcher", task="x", workspace=str(lab.workspace), model="own:test"
            )
    assert answer.status == "failed" and "lies in the project" in answer.message, answer


async def test_settings_in_the_project_run_no_command(tmp_path: Path, minter: Minter) -> None:
    with run_model_server([]) as server:
        async with open_lab(tmp_path, server=server, config=config(server, minter.argv), beneath=tmp_path) as lab:
            answer = await lab.call(
                "spawn_subagent", role="researcher", task="x", workspace=str(tmp_path), model="own:test"
            )
    assert answer.status == "failed", answer
    assert not minter.runs


def test_a_project_file_names_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    (project / ".ava").mkdir(parents=True)
    for folder in (project, project / ".ava"):
        (folder / "config.toml").write_text('[providers.openai]\nkey_command = ["/bin/false"]\n')
    monkeypatch.chdir(project)
    settings = load_settings(tmp_path / "data", env={"AVA_WORKSPACE": str(project)})
    assert settings.providers == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AVA_PROVIDERS__OWN__KEY_COMMAND", '["/bin/false"]'),
        ("AVA_PROVIDERS__OWN__KEY_TTL_S", "5"),
        ("AVA_PROVIDERS__OTHER", '{"base_url": "https://a.example/v1", "key_command": ["/bin/false"]}'),
        ("AVA_PROVIDERS__OWN__BASE_URL", "https://elsewhere.example/v1"),
    ],
)
def test_a_variable_names_no_command_and_moves_no_key(tmp_path: Path, name: str, value: str) -> None:
    (tmp_path / "config.toml").write_text(
        '[providers.own]\nbase_url = "https://own.example/v1"\nkey_command = ["/bin/true"]\n'
    )
    with pytest.raises(ConfigError, match=name):
        load_settings(tmp_path, env={name: value})


def test_the_endpoint_of_a_variable_gets_no_key_of_a_command(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        '[providers.custom]\nbase_url = "https://own.example/v1"\nkey_command = ["/bin/true"]\n'
    )
    settings = load_settings(tmp_path, env={"AVA_MODEL_BASE_URL": "https://elsewhere.example/v1", "AVA_MODEL": "x"})
    custom = configured(model_settings(settings))["custom"]
    assert custom.base_url == "https://elsewhere.example/v1" and not custom.has_key


def test_a_key_of_a_command_leaves_the_network_only_over_https(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        '[providers.own]\nbase_url = "http://own.example/v1"\nkey_command = ["/bin/true"]\n'
    )
    with pytest.raises(ConfigError, match="unencrypted"):
        choose("own:x", "balanced", model_settings(load_settings(tmp_path, env={})))


# -- where the setting is shown ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_setting_a_command_says_that_it_loosens_and_doctor_shows_it(tmp_path: Path, minter: Minter) -> None:
    root = tmp_path / "data"
    root.mkdir(mode=0o700)
    done = ava(root, "config", "set", "providers.openai.key_command", json.dumps(minter.argv))
    assert "outside the sandbox" in done.stdout and done.returncode == 0, done
    (root / "config.toml").chmod(0o600)
    found = ava(root, "doctor", "--json")
    texts = [check["text"] for check in json.loads(found.stdout)["findings"] if check["name"] == "programs"]
    assert any("providers.openai.key_command runs outside the sandbox" in text for text in texts), texts
    assert not minter.runs
    (minter.folder / "mint.py").chmod(0o666)
    found = ava(root, "doctor", "--json")
    [check] = [check for check in json.loads(found.stdout)["findings"] if check["name"] == "programs"]
    assert check["state"] == "fault" and "every user can write" in check["text"]


@pytest.mark.slow
def test_a_backup_with_a_command_is_shown_before_it_is_used(tmp_path: Path, minter: Minter) -> None:
    from ava_server.cli.backup import _looser_settings

    file = tmp_path / "config.toml"
    file.write_text(f"[providers.openai]\nkey_command = {json.dumps(minter.argv)}\n")
    assert any("providers.openai.key_command" in text for text in _looser_settings(file))
    others = "".join(f'[providers.a{n}]\nbase_url = "https://a{n}.example/v1"\n' for n in range(20))
    argv = json.dumps([*minter.argv, "w" * 300, "end"])
    file.write_text(f'{others}[providers.z]\nbase_url = "https://z.example/v1"\nkey_command = {argv}\n')
    assert "end" in next(_looser_settings(file)), "a program is first, on a line of its own, and uncut"


async def test_listing_models_asks_the_command(tmp_path: Path, minter: Minter) -> None:
    from ava_server.models.http_clients import ClientPool
    from ava_server.models.listing import ask_endpoint, model_catalogs

    with run_model_server([Fail(200, {"data": [{"id": "one"}]})]) as server:
        settings = settings_of(tmp_path / "data", None, config(server, minter.argv))
        catalog = model_catalogs(model_settings(settings))["own"]
        async with ClientPool() as clients:
            assert await ask_endpoint(catalog, clients) == ["one"]
        assert minter.accepts(server)
        settings = settings_of(tmp_path / "data", None, config(server, [sys.executable, "-c", f"print('{SECRET} x')"]))
        async with ClientPool() as clients:
            with pytest.raises(ModelError, match="is not a key") as failed:
                await ask_endpoint(model_catalogs(model_settings(settings))["own"], clients)
    assert SECRET not in str(failed.value)


def test_a_paid_endpoint_is_not_priced_as_a_free_model() -> None:
    from ava_server.models.model_choice import price_over
    from ava_server.models.prices import Unpriced

    as_free = {"ours": "openrouter:x/y:free"}
    with pytest.raises(Unpriced, match="which is free"):
        price_over("chat_completions", "azure", "ours", "https://our.openai.azure.com/openai/v1", {}, as_free)
    assert price_over("chat_completions", "own", "ours", "http://127.0.0.1:8000/v1", {}, as_free).free


async def test_a_key_of_an_address_with_its_own_header_is_sent_once() -> None:
    from ava_server.models.errors import Endpoint
    from ava_server.models.http_model import key_headers
    from ava_server.models.wires.chat import ChatWire

    azure = Endpoint("https://our.openai.azure.com/openai/v1/chat/completions", "x", SECRET)
    assert key_headers(ChatWire(), azure) == {"api-key": SECRET}
    minted = Endpoint(azure.url, "x", SECRET, minted=True)
    assert key_headers(ChatWire(), minted) == {"authorization": f"Bearer {SECRET}"}


class Minter:
    """A command that prints the key of the present epoch, and what it noted of its runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "mint.py").write_text(PRINTS)
        self.epoch = 1

    @property
    def epoch(self) -> int:
        return int((self.folder / "epoch").read_text())

    @epoch.setter
    def epoch(self, number: int) -> None:
        (self.folder / "epoch").write_text(str(number))

    @property
    def argv(self) -> list[str]:
        return [sys.executable, "-I", str(self.folder / "mint.py"), str(self.folder)]

    @property
    def runs(self) -> list[dict[str, Any]]:
        noted = self.folder / "ran"
        return [json.loads(line) for line in noted.read_text().splitlines()] if noted.exists() else []

    def accepts(self, server: ModelServer) -> bool:
        """Tell whether the request that arrived last has the key of this epoch."""
        return server.requests[-1].headers.get("authorization") == f"Bearer {TOKEN.format(self.epoch)}"


def config(server: ModelServer, argv: list[str], ttl_s: int = 3_000, more: str = "") -> str:
    return f"""
[limits]
running_per_user = 20
running = 20
spawns_per_hour = 100
[providers.own]
base_url = "{server.base_url}"
key_command = {json.dumps(argv)}
key_ttl_s = {ttl_s}
[prices."own:test"]
input = 3.0
output = 15.0
{more}"""


def command(code: str, ttl_s: int = 60) -> KeyCommand:
    return KeyCommand("own", (sys.executable, "-I", "-c", code), ttl_s)


async def stored_text(lab: Lab) -> str:
    runs = await lab.store.read(lambda view: [view.entries(run.id) for run in view.runs(limit=-1)])
    return repr(runs)
