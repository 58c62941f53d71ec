"""`ava --url URL` with `status`, `logs`, `show`, `wait`, `cancel`, `send` and `report`: a real server and two users."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import pytest
from mcp import Client
from support.http_server import HttpServer, serve_http, token
from support.model_server import Gate, Say, run_model_server
from support.runtime import PRICED
from support.stdio import make_root, model_env, read_answer, read_log, state_of, until
from support.terminal import COMMAND, ava, environment, run_on_terminal

pytestmark = pytest.mark.slow

PAID = PRICED.replace("custom:test", "custom:scripted")
DONE = Say(calls=[("submit_result", {"summary": "The answer is 42.", "output": "All of it: 42."})])
UNKNOWN = "S-0123ab"


async def test_status_shows_a_question_with_its_options_and_commands_that_name_the_server(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data", config_toml=PAID)
    asks = Say(calls=[("ask", {"question": "Which \x1b[31mcurrency?", "options": ["EUR", "USD"]})])
    with run_model_server([asks, DONE]) as model:
        ana = token(root, "ana")
        async with serve_http(root, env=model_env(model.base_url)) as server, server.client(ana) as client:
            run = await start(client, "What does it cost?")
            waiting = {"role": "custom", "system_prompt": "x", "task": "Another"}
            proposal = read_answer(await client.call_tool("spawn_subagent", waiting))[0]
            await until(lambda: bool(read_log(root, "Asked", run=run)), 20)
            there = Shared(server, root, client, ana, run, run, "", Gate())
            shown = (await there.ava("--url", server.base, "status")).stdout
            assert "It asks:\n" in shown and "\x1b" not in shown
            for line in ("│ Which currency?\n", "│ 1. EUR\n", "│ 2. USD\n"):
                assert line in shown, shown
            together = " ".join(shown.split())
            command = f"ava --url {server.base}"
            assert f"`{command} send {run} " in together, shown
            for decide in ("approve", "reject"):
                assert f"  {command} {decide} {proposal['pending_id']}\n" in shown, shown
            sent = await there.ava("--url", server.base, "send", run, "EUR")
            assert sent.returncode == 0, sent.stderr
            named = (await there.ava("status", AVA_URL=server.base)).stdout
            assert f"  ava approve {proposal['pending_id']}" in named, named
            here = (await anyio.to_thread.run_sync(lambda: ava(root, "status", "--once", "--all"))).stdout
            assert f"{run}" in here


async def test_the_address_may_stand_before_or_after_the_command_or_in_a_variable(tmp_path: Path) -> None:
    async with shared(tmp_path) as there:
        url = there.server.base
        for args, says in (
            (("status",), there.works),
            (("logs", there.ended), "submit_result"),
            (("show", there.ended), "The answer is 42."),
            (("wait", there.ended), "The answer is 42."),
            (("report",), "of ana"),
            (("report", "approvals"), "of ana: "),
            (("send", there.works, "hello"), "reads it before its next turn"),
        ):
            for words, env in (
                (("--url", url, *args), {}),
                ((*args, f"--url={url}/mcp"), {"AVA_URL": "http://127.0.0.1:1"}),  # the option counts
                (args, {"AVA_URL": f"{url}/"}),
            ):
                done = await there.ava(*words, **env)
                assert done.returncode == 0 and says in done.stdout, (words, done.stderr)
                assert done.stdout.startswith(f"Server: {url}\n"), words
        sent = [entry for entry in read_log(there.root, "UserMessage") if entry.content["kind"] == "message"]
        assert len(sent) == 3
        for words, env in (
            (("--url", url, "cancel", there.works, "--reason", "enough"), {}),
            (("cancel", there.works, "--url", url), {}),
            (("cancel", there.works), {"AVA_URL": url}),
        ):
            done = await there.ava(*words, **env)
            assert done.returncode == 0, done.stderr
        assert "had ended before: cancelled" in done.stderr and "Nothing was done." in done.stdout
        assert state_of(there.root, there.works) == "cancelled"


async def test_screens_are_the_same_as_on_the_server_itself(tmp_path: Path) -> None:
    async with shared(tmp_path) as there:
        for args in (
            ("show", there.ended), ("show", there.ended, "--cost"), ("show", there.ended, "--utc"),
            ("wait", there.ended), ("logs", there.ended), ("logs", there.ended, "--all", "--last", "3"),
            ("logs", "--user", "ana", "--type", "cost,spawn"), ("logs", there.ended, "--search", "nowhere"),
        ):  # fmt: skip
            away = await there.there(*args)
            assert away.returncode == 0, away.stderr
            screen = away.stdout.replace(f"`ava --url {there.server.base} ", "`ava ")  # what to run next works there
            assert _without_place(screen) == await there.here(*args), args
        for args in (("show", there.ended, "--cost", "--json"), ("show", there.ended, "--json")):
            mine, theirs = (
                json.loads((await there.there(*args)).stdout),
                await anyio.to_thread.run_sync(ava, there.root, *args),
            )
            other = json.loads(theirs.stdout)
            assert mine.pop("server") == there.server.base and other.pop("data_root") == str(there.root)
            for found in (mine, other):  # a result that was shown is on the record, here and there
                found["entries"] = [
                    entry for entry in found.get("entries", []) if "carried" not in json.dumps(entry.get("content"))
                ]
            assert mine == other
        lines = ("logs", there.ended, "--json", "--type", "cost")
        raw = await anyio.to_thread.run_sync(ava, there.root, *lines)
        assert raw.stdout and (await there.there(*lines)).stdout == raw.stdout  # byte for byte, to be verified
        shown = json.loads((await there.there("status", "--json")).stdout)
        assert {run["subagent_id"] for run in shown["runs"]} == {there.ended, there.works} and shown["user"] == "ana"
        (budget,) = shown["today"]
        assert budget["whose"] == "ana" and budget["spent_cents"] > 0


async def test_more_entries_than_one_answer_holds_are_all_shown(tmp_path: Path) -> None:
    async with shared(tmp_path) as there:
        for number in range(30):
            read_answer(
                await there.ana.call_tool("message_subagent", {"subagent_id": there.works, "message": f"m{number}"})
            )
        args = ("logs", there.works, "--last", "1000", "--json")
        raw = await anyio.to_thread.run_sync(ava, there.root, *args)
        assert (await there.there(*args)).stdout == raw.stdout and raw.stdout.count("\n") > 30


async def test_runs_of_others_are_as_unknown_as_runs_that_never_were(tmp_path: Path) -> None:
    async with shared(tmp_path) as there:
        for command in (("show",), ("wait",), ("logs",), ("send", "hello"), ("cancel",)):
            word, *rest = command
            said: list[str] = []
            for run in (UNKNOWN, there.bens):
                done = await there.there(word, run, *rest)
                assert done.returncode == 2, (command, done.stdout)
                said.append(done.stderr.replace(run, "ID"))
            assert said[0] == said[1] and "There is no subagent ID of ana" in said[0], command
        for args in (("status",), ("logs", "--all"), ("logs", "--search", "secret"), ("report",), ("status", "--json"),
                     ("report", "approvals"), ("report", "approvals", "--csv")):  # fmt: skip
            done = await there.there(*args)
            assert done.returncode == 0 and "secret" not in done.stdout and there.bens not in done.stdout, args
            assert "ben" not in done.stdout and "other users" not in done.stdout, args
        for words in (("status", "--all"), ("report", "--all"), ("logs", "--user", "ben"),
                     ("report", "approvals", "--all"), ("report", "approvals", "--user", "ben")):  # fmt: skip
            refused = await there.there(*words)
            assert refused.returncode == 10 and "scope audit" in refused.stderr, words
        auditor = token(there.root, "zoe", "audit")
        for words in (("status", "--all"), ("logs", "--search", "secret"), ("show", there.bens), ("report", "--all"),
                     ("report", "approvals", "--all"), ("report", "approvals", "--user", "ben")):  # fmt: skip
            done = await there.there(*words, text=auditor)
            assert done.returncode == 0 and ("secret" in done.stdout or "all users" in done.stdout), (
                words,
                done.stderr,
            )
        assert (await there.there("cancel", there.works, text=auditor)).returncode == 10
        assert state_of(there.root, there.works) == "running"


async def test_the_report_of_approvals_is_the_same_there_and_here(tmp_path: Path) -> None:
    async with shared(tmp_path) as there:
        for form in ("--csv", "--json"):
            span = ("--since", "1h", "--until", "2099-01-01T00:00Z")
            remote = await there.there("report", "approvals", form, *span)
            here = await anyio.to_thread.run_sync(ava, there.root, "report", "approvals", form, "--user", "ana", *span)
            assert (remote.returncode, here.returncode, remote.stderr) == (0, 0, "")
            if form == "--csv":
                assert remote.stdout == here.stdout and there.ended in remote.stdout
            else:
                shown, expected = json.loads(remote.stdout), json.loads(here.stdout)
                assert shown["decisions"] == expected["decisions"] and shown["total"] == expected["total"]
        by = {row["subagent_id"]: row["decided_by"] for row in shown["decisions"]}[there.ended]
        assert (by["user"], by["kind"], by["channel"]) == ("ana", "host", "host_call") and by["token"]


async def test_a_plan_is_named_by_its_id_and_only_for_its_user(tmp_path: Path) -> None:
    async with shared(tmp_path) as there:
        asked = {"role": "custom", "system_prompt": "x", "task": "one of two"}
        both = [read_answer(await there.ana.call_tool("spawn_subagent", asked))[0] for _each in range(2)]
        given: dict[str, Any] = {"pending_ids": [one["pending_id"] for one in both], "approving": []}
        refused = read_answer(await there.ana.call_tool("confirm_spawn", given))[0]
        started = read_answer(
            await there.ana.call_tool("confirm_spawn", {**given, "approving": refused["approval_lines"]})
        )[0]
        group = started["group_id"]
        waited = await there.there("wait", group)
        assert waited.returncode == 0 and waited.stdout.count("All of it: 42.") == 2, waited.stderr
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {there.text}"}) as client:
            base = f"{there.server.base}/runs"
            assert (await client.get(base, params={"id": group})).status_code == 200
            assert (await client.get(f"{base}/{group}")).status_code == 200, "a plan is named as a run is"
        report = await there.there("report", "--group", group)
        assert report.returncode == 0 and f"{group} of ana" in report.stdout
        theirs = await there.there("report", "--group", group, text=token(there.root, "ben", name="bens-two"))
        never = await there.there("report", "--group", "G-0000000", text=token(there.root, "ben", name="bens-three"))
        assert theirs.returncode == never.returncode == 2
        assert theirs.stderr.replace(group, "G-0000000") == never.stderr


@pytest.mark.parametrize(
    ("scopes", "allowed", "refused"),
    [
        (("read",), ("status", "show", "logs", "report", "wait"), ("send", "cancel")),
        (("spawn",), (), ("status", "show", "logs", "report", "wait", "send", "cancel")),
        (("approve",), (), ("status", "show", "logs", "report", "wait", "send", "cancel")),
    ],
)
async def test_a_token_does_what_its_scopes_allow(
    tmp_path: Path, scopes: tuple[Any, ...], allowed: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    async with shared(tmp_path) as there:
        text = token(there.root, "ana", *scopes, name="other")
        words = {"show": (there.ended,), "wait": (there.ended,), "send": (there.works, "x"), "cancel": (there.works,)}
        for verb in allowed:
            done = await there.there(verb, *words.get(verb, ()), text=text)
            assert done.returncode == 0, (verb, done.stderr)
        for verb in refused:
            done = await there.there(verb, *words.get(verb, ()), text=text)
            assert done.returncode == 10 and "lacks the scope" in done.stderr, (verb, done.stderr)
        assert state_of(there.root, there.works) == "running" and not read_log(there.root, "CancelRequested")


async def test_to_resume_a_proposal_that_waits_does_not_approve_it(tmp_path: Path) -> None:
    async with shared(tmp_path) as there:
        waiting = {"role": "custom", "system_prompt": "x", "task": "Another"}
        proposal = read_answer(await there.ana.call_tool("spawn_subagent", waiting))[0]
        for given in (proposal["subagent_id"], proposal["pending_id"]):
            done = await there.there("resume", given)
            assert done.returncode == 10 and "waits for approval" in done.stderr, done
        assert state_of(there.root, proposal["subagent_id"]) == "awaiting_approval"


async def test_a_shown_result_counts_as_fetched_and_a_look_does_not(tmp_path: Path) -> None:
    async with shared(tmp_path) as there:
        run = await start(there.ana, "Another")
        await until(lambda: state_of(there.root, run) == "success")

        def fetched() -> int:
            found = [entry for entry in read_log(there.root, "ToolResult") if "carried" in entry.content["output"]]
            return sum(run in entry.content["output"] for entry in found)

        for args in (("status",), ("show", run, "--cost"), ("logs", run), ("report",), ("report", "approvals")):
            assert (await there.there(*args)).returncode == 0
        assert fetched() == 0
        assert (await there.there("show", run, text=token(there.root, "zoe", "audit"))).returncode == 0
        assert fetched() == 0, "an auditor's look is no news for the user"
        assert (await there.there("show", run)).returncode == 0
        assert fetched() == 1


async def test_commands_of_a_data_root_refuse_another_server_and_say_where_they_work(tmp_path: Path) -> None:
    async with shared(tmp_path) as there:
        url, elsewhere = there.server.base, tmp_path / "elsewhere"
        for args in (("erase", there.ended), ("verify",), ("run", "custom", "x"), ("roles",),
                     ("logs", "export", "-o", "-"), ("key", "list"), ("config", "list"), ("doctor",)):  # fmt: skip
            name = " ".join(args[:2]) if args[1:2] == ("export",) else args[0]
            for words in (("--url", url, *args), (*args, "--url", url), (*args, f"--url={url}")):
                refused = await there.ava(*words)
                assert refused.returncode == 2 and f"`ava {name}` works only on the data root" in refused.stderr, words
            if name != "doctor":
                refused = await there.ava(*args, AVA_URL=url)
                assert refused.returncode == 2 and "AVA_URL names another server" in refused.stderr, args
        helped = await there.ava("erase", "--help", AVA_URL=url)
        assert helped.returncode == 0 and "Usage" in helped.stdout
        alone = await there.ava("show", there.ended, "--token-file", str(elsewhere))
        assert alone.returncode == 2 and "--token-file: it needs --url" in alone.stderr
        hosts = await anyio.to_thread.run_sync(
            lambda: ava(tmp_path / "host", "init", "codex", "--print", env={"AVA_URL": url, "HOME": str(tmp_path)})
        )
        assert hosts.returncode == 0 and "serve" in hosts.stdout, "a host's own server is not another one"


@pytest.mark.parametrize("verb", ["status", "logs", "show", "wait", "cancel", "send", "report"])
async def test_reports_a_wrong_address_or_token_in_one_sentence(tmp_path: Path, verb: str) -> None:
    words = {"show": (UNKNOWN,), "wait": (UNKNOWN,), "send": (UNKNOWN, "x"), "cancel": (UNKNOWN,)}.get(verb, ())
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    async with serve_http(root) as server:
        for url, given, code, says in (
            (server.base, "x" * 40, 10, "Unknown token"),
            (server.base, "", 2, "AVA_TOKEN"),
            ("http://127.0.0.1:1", text, 30, "ava serve --http"),
            ("http://ava.example.org", text, 2, "use https"),
            ("ftp://ava.example.org", text, 2, "not a server's address"),
            (f"{server.base}/else", text, 2, "not a server's address"),
            (server.base.replace("http:", "https:"), text, 30, "oken was not sent"),
        ):
            call = partial(ava, tmp_path / "elsewhere", verb, *words, "--url", url, env={"AVA_TOKEN": given})
            done = await anyio.to_thread.run_sync(call)
            assert done.returncode == code and says in done.stderr, (url, done.stderr)
            assert done.stderr.count("\n") == 1 and text not in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "elsewhere").exists()


async def test_a_wait_survives_a_restart_of_the_server_and_ends_with_the_run(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data", config_toml=PAID)
    text, gate = token(root, "ana"), Gate(300)
    with run_model_server([Say("x", gate=gate), DONE, DONE]) as model:
        env = model_env(model.base_url)
        async with serve_http(root, env=env) as first, first.client(text) as client:
            run = await start(client, "Long")
            await until(gate.arrived.is_set)
            port = str(first.port)
            process = await anyio.open_process(
                [*COMMAND, "wait", run, "--url", first.base], stdin=subprocess.DEVNULL,
                env=environment(tmp_path / "elsewhere", AVA_TOKEN=text),
            )  # fmt: skip
            await until(lambda: len(read_log(root, "SessionStart")) >= 1)
            await anyio.sleep(8)
            first.signal()
            await first.exited()
        await anyio.sleep(11)  # where lines are not rewritten in place, one comes every ten seconds
        assert process.returncode is None, "the wait ended with the server"
        gate.released.set()
        async with serve_http(root, env=env, command=("serve", "--http", "--port", port)):
            with anyio.fail_after(40):
                assert await process.wait() == 0
            assert process.stdout is not None and process.stderr is not None
            shown, told_of = [b"".join([part async for part in each]) for each in (process.stdout, process.stderr)]
        await process.aclose()
    assert b"The answer is 42." in shown and b"Waiting for the server: " in told_of


async def test_a_wait_with_a_timeout_ends_on_time_also_without_a_server(tmp_path: Path) -> None:
    async with shared(tmp_path) as there:
        done = await there.there("wait", there.works, "--timeout", "2")
        assert done.returncode == 130 and "The wait ended after 2 s" in done.stderr and there.works in done.stderr
        waits = await anyio.open_process(
            [*COMMAND, "wait", there.works, "--url", there.server.base, "--timeout", "6"], stdin=subprocess.DEVNULL,
            env=environment(tmp_path / "elsewhere", AVA_TOKEN=there.text),
        )  # fmt: skip
        await anyio.sleep(3)
        there.server.process.kill()
        with anyio.fail_after(20):
            assert await waits.wait() == 30
        await waits.aclose()


async def test_the_log_is_followed_over_http(tmp_path: Path) -> None:
    async with shared(tmp_path) as there:
        process = await anyio.open_process(
            [*COMMAND, "logs", there.works, "-f", "--url", there.server.base], stdin=subprocess.DEVNULL,
            env=environment(tmp_path / "elsewhere", AVA_TOKEN=there.text, PYTHONUNBUFFERED="1"),
        )  # fmt: skip
        assert process.stdout is not None
        seen = b""
        with anyio.fail_after(30):
            while b"UserMessage" not in seen:
                seen += await process.stdout.receive()
            read_answer(
                await there.ana.call_tool("message_subagent", {"subagent_id": there.works, "message": "turn left"})
            )
            while b"turn left" not in seen:
                seen += await process.stdout.receive()
        assert seen.count(b"(task)") == 1, "an entry came twice"
        process.kill()
        await process.aclose()


async def test_without_an_id_the_own_last_run_is_meant_and_cancelled_only_after_a_yes(tmp_path: Path) -> None:
    async with shared(tmp_path) as there:
        assert "A long question" in (await there.there("show")).stdout
        unasked = await there.there("cancel")
        assert unasked.returncode == 2 and there.works in unasked.stderr

        def answered(answer: str) -> tuple[int, str]:
            env = {"AVA_TOKEN": there.text, "AVA_URL": there.server.base}
            with run_on_terminal(tmp_path / "elsewhere", "cancel", env=env, columns=160) as screen:
                return screen.ended_after([("[y/N]", answer)]), screen.text

        assert (await anyio.to_thread.run_sync(answered, "n"))[0] == 10
        assert state_of(there.root, there.works) == "running"
        code, text = await anyio.to_thread.run_sync(answered, "y")
        assert code == 0 and "cancelled" in text and state_of(there.root, there.works) == "cancelled"


async def test_programs_get_sentences_for_what_the_paths_do_not_do(tmp_path: Path) -> None:
    async with shared(tmp_path) as there:
        get = there.server.get
        assert (await get("/runs")).status_code == 401
        assert (await there.server.post("/runs", there.text, json={})).status_code == 405
        facts = (await get("/token", token(there.root, "ana", "approve", name="phone"))).json()
        assert facts["user"] == "ana" and facts["scopes"] == ["approve"] and facts["version"]
        for path, status in (
            (f"/runs/{there.bens}", 404), (f"/runs/{there.bens}/costs", 404), (f"/runs/{there.bens}/diff", 404),
            (f"/runs/{there.bens}/sources/1", 404), (f"/runs/{there.ended}/sources/1", 400),
            (f"/runs/{there.bens}/detail", 404),
            (f"/runs/{there.ended}/sources/x", 400),
            (f"/runs?id={there.bens}", 404), ("/runs/x", 404), ("/runs?id=x", 404), ("/runs/last", 404),
            (f"/runs/{there.ended}/else", 404), ("/log?query={", 400), ('/log?query={"types":["x"]}', 400),
            ('/log?query={"limit":"many"}', 400), ("/report", 400), ("/report?first=x&last=1", 400),
            (f"/report?first={'9' * 40}&last=1", 400), ("/report?group=x", 400), (f"/runs/{there.ended}/diff", 409),
            ("/runs?all=1", 403), ("/report?all=1&first=1&last=2", 403), ('/log?query={"users":["ben"]}', 403),
            ("/report/approvals", 400), (f"/report/approvals?since=0&until={'9' * 40}", 400),
            ("/report/approvals?since=0&until=9&before_us=1&before_seq=x", 400), ("/report/x", 404),
            ("/report/approvals?since=0&until=9&all=1", 403), ("/report/approvals?since=0&until=9&user=ben", 403),
            ("/runsx", 404), ("/tokens", 404),
        ):  # fmt: skip
            answer = await get(path, there.text)
            assert answer.status_code == status, (path, answer.status_code, answer.text)
            assert answer.json()["error_description"] and "ben" not in answer.text.replace("token create", ""), path
        detail = (await get(f"/runs/{there.ended}/detail", there.text)).json()
        assert detail["run"]["row"]["id"] == there.ended and detail["decided"] and detail["texts"]["task"]
        selected = [
            (await get(f"/runs?selected={run}", there.text)).json()["selected"] for run in (there.ended, there.bens)
        ]
        assert selected[0]["about"] and selected[0]["run_id"] == there.ended and selected[1] is None
        theirs = json.dumps({"agents": [there.bens]})
        assert (await get(f"/log?query={theirs}", there.text)).json()["lines"] == []
        assert (await get(f"/log?query={json.dumps({'runs': [there.bens]})}", there.text)).status_code == 404
        everything = (await get('/log?query={"limit":100000}', there.text)).json()
        assert everything["lines"] and not re.search(r'"userId":"(?!ana")', "".join(everything["lines"]))


@dataclass
class Shared:
    """A server with a run of Ana's that has ended, one that works, and one of Ben's that has ended."""

    server: HttpServer
    root: Path
    ana: Client
    text: str
    ended: str
    works: str
    bens: str
    gate: Gate

    async def ava(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        """A command on a machine without a data root."""
        elsewhere = self.root.parent / "elsewhere"
        done = await anyio.to_thread.run_sync(lambda: ava(elsewhere, *args, env={"AVA_TOKEN": self.text, **env}))
        said = done.stdout + done.stderr
        assert self.text not in said and "Traceback" not in said and "fault of Ava" not in said, said
        assert not elsewhere.exists()
        return done

    async def there(self, *args: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """A command with `--url` behind it."""
        env = {} if text is None else {"AVA_TOKEN": text}
        return await self.ava(*args, "--url", self.server.base, **env)

    async def here(self, *args: str) -> str:
        """What the same command shows on the server's own data root."""
        done = await anyio.to_thread.run_sync(lambda: ava(self.root, *args))
        assert done.returncode == 0, done.stderr
        return _without_place(done.stdout)


def _without_place(screen: str) -> str:
    """A screen without its first line, which names the data root or the server."""
    first, _, rest = screen.partition("\n")
    assert first.startswith(("Data root: ", "Server: ")), screen
    return rest


async def start(client: Client, task: str, **more: Any) -> str:
    asked = {"role": "custom", "system_prompt": "x", "task": task, **more}
    proposed = read_answer(await client.call_tool("spawn_subagent", asked))[0]
    given = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
    read_answer(await client.call_tool("confirm_spawn", given))
    return str(proposed["subagent_id"])


async def finish(client: Client, task: str) -> str:
    run = await start(client, task)
    found = read_answer(await client.call_tool("check_subagent", {"subagent_id": run, "wait_seconds": 30}))[0]
    assert found["status"] == "success"
    return run


@asynccontextmanager
async def shared(tmp_path: Path) -> AsyncGenerator[Shared]:
    root = make_root(tmp_path / "data", config_toml=PAID)
    ana, ben = token(root, "ana"), token(root, "ben")
    gate = Gate(300)

    def step(request: dict[str, Any]) -> Say:  # the long question has no answer, however often it is asked
        return Say("x", gate=gate) if "A long question" in json.dumps(request) else DONE

    with run_model_server(step) as model:
        async with (
            serve_http(root, env=model_env(model.base_url)) as server,
            server.client(ana) as client,
            server.client(ben) as other,
        ):
            ended, bens = await finish(client, "Ana's question"), await finish(other, "Ben's secret question")
            works = await start(client, "A long question", name="slow")
            await until(gate.arrived.is_set)
            yield Shared(server, root, client, ana, ended, works, bens, gate)
            gate.released.set()
