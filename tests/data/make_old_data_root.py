"""Make a data root with this version of Ava, for the tests of later versions: `python make_old_data_root.py`.

tests/data/data-root-0.1.0.tar.xz was made on Linux, from a clone at version 0.1.0:

    python3.11 -m venv /tmp/ava-old-root-venv
    /tmp/ava-old-root-venv/bin/pip install .
    cd tests && PYTHONPATH=. /tmp/ava-old-root-venv/bin/python data/make_old_data_root.py

Do not install with `-e`, and keep that folder: then no path of your machine gets into the log. The script uses the
`ava` command, a host on stdio and the scripted model server. At the end it kills the server while four runs are
unfinished. It asks the version's own commands about the root, and packs their answers with it.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
from support.logs.old_root import BASE, FACTS, SHOP, USER, archive, reached, same_places, surroundings
from support.model_server import Fail, Gate, ModelServer, Say, Step, running_model_server
from support.repositories.projects import checkout
from support.stdio import serving
from support.terminal import COMMAND, ava, environment, on_terminal

ROOT, HOME, ADDER = BASE / "data", BASE / "home", BASE / "adder"
CONFIG = f"""\
[limits]
running_per_user = 1
spawns_per_hour = 100

[workspace]
roots = ["{BASE}"]

[prices."custom:test"]
input = 3.0
output = 15.0
cache_read = 0.3
cache_write = 3.75
"""
PROJECT = {
    "adding.py": "def add(a, b):\n    return a - b\n",
    "test_adding.py": (
        "import unittest\nfrom adding import add\n\n"
        "class Adds(unittest.TestCase):\n    def test_adds(self):\n        self.assertEqual(add(1, 2), 3)\n"
    ),
    ".gitignore": "__pycache__/\n",
}
READ = ("read_file", {"path": "a.md"})
NOTE = ("scratchpad", {"note": "half of it"})
FOUND = {"claim": "Badger costs thirty cents.", "source_url": "a.md", "quote": "Badger charges thirty cents a night."}


def done(output: Any = "twelve cents", summary: str = "It is looked up.", **more: Any) -> Say:
    """An answer that hands over a result."""
    return Say(calls=[("submit_result", {"summary": summary, "output": output, "confidence": 0.5, **more})])


def printed(name: str, args: Mapping[str, Any]) -> Say:
    """A call that the model prints as words."""
    return Say(f"I look.\n<tool_call>\n{json.dumps({'name': name, 'arguments': args})}\n</tool_call>")


class Scripted:
    """Answers by the first word of a run's task, each run its own answers, one after the other."""

    def __init__(self) -> None:
        self.gates = {name: Gate(within_s=120) for name in ("marten", "mole", "stoat", "weasel")}
        self._lock = threading.Lock()
        self._steps: dict[str, list[Step]] = {
            "Badger": [
                Say("I look.", [READ, ("search_codebase", {"query": "cents"}), NOTE], reasoning="Where may it stand?"),
                Say("I save it.", [("save_artifact", {"name": "prices.csv", "content": "badger,0.30\n"})]),
                done("Badger charges **thirty** cents.", findings=[FOUND], caveats=["Only one page was read."]),
            ],
            "Heron": [
                Say("It wants the price of Heron, and what was found before."),
                Say("1. Read the earlier result.\n2. Hand over."),
                Say("The plan holds."),
                Say(calls=[("read_subagent_result", {"id": "OTTER"})]),
                done("Heron is free."),
            ],
            "Lynx": [Fail(429, retry_after="0"), Say(calls=[NOTE]), Fail(400), done("Lynx is not for sale.")],
            "Marten": [Say(calls=[NOTE]), Say("lost", gate=self.gates["marten"])],
            "Vole": [
                printed(*READ),
                Say(calls=[("fly", {}), ("read_file", '{"path": ')]),
                *[Say(calls=[READ])] * 2,
                done("Vole: not found", summary="There was no more time.", confidence=0.1),
            ],
            "Finch": [done("one cent")],
            "Wren": [Say(calls=[READ]), done("two cents")],
            "Mole": [Say(calls=[NOTE], gate=self.gates["mole"]), done("four cents, in euros")],
            "Stoat": [Say("I look.", [READ]), Say("lost", gate=self.gates["stoat"]), done("five cents")],
            "Newt": [Say("A secret of the newt.", [READ]), done("erased later")],
            "Ermine": [done("of another user")],
            "Adder": [
                Say(calls=[("edit_file", {"path": "adding.py", "old": "a - b", "new": "a * b"})]),
                done("It adds."),
                Say(calls=[("edit_file", {"path": "adding.py", "old": "a * b", "new": "a + b"})]),
                done("It adds.", summary="Adding adds."),
            ],
            "Ibis": [Fail(429, retry_after="3600")],
            "Weasel": [Say("I look at the weasel.", [READ, NOTE]), Say("lost", gate=self.gates["weasel"])],
        }
        self.otter = ""

    def __call__(self, request: dict[str, Any]) -> Step:
        name = str(request["messages"][1]["content"]).split(":", 1)[0].split()[-1]
        with self._lock:
            step = self._steps[name].pop(0)
        if isinstance(step, Say) and step.calls and step.calls[0][0] == "read_subagent_result":
            return Say(calls=[("read_subagent_result", {"id": self.otter})])
        return step


class Maker:
    """What uses the data root while it is made."""

    def __init__(self, model: ModelServer, script: Scripted, way: Mapping[str, str]) -> None:
        self.model, self.script = model, script
        self.env = {**surroundings(HOME), **way}
        self.runs: dict[str, str] = {}
        self.made_s = 0.0
        self.waits: dict[str, str] = {}

    def ava(self, *words: str, code: int | None = 0, **more: str) -> subprocess.CompletedProcess[str]:
        ended = ava(ROOT, *words, cwd=SHOP, env={**self.env, **more})
        assert code is None or ended.returncode == code, f"{words}: {ended.returncode}\n{ended.stdout}{ended.stderr}"
        return ended

    def json(self, *words: str, code: int | None = 0, **more: str) -> Any:
        return json.loads(self.ava(*words, "--json", code=code, **more).stdout)

    def run(self, name: str, *more: str, code: int = 0, role: str = "researcher", **env: str) -> str:
        """Run one to its end, and return its id."""
        words = ("run", role, f"{name}: what does it cost?", *more, "--yes", "--max-cost", "0.50")
        if role == "researcher":
            words = (*words, "--workspace", str(SHOP))
        run_id: str = self.json(*words, code=code, **env)["subagent_id"]
        self.runs[name] = run_id
        return run_id

    def begun(self, name: str) -> subprocess.Popen[bytes]:
        """Begin a run in a process of its own."""
        task = (f"{name}: what does it cost?", "--workspace", str(SHOP), "--yes", "--max-cost", "0.50")
        process = subprocess.Popen(
            [*COMMAND, "run", "researcher", *task], env=environment(ROOT, **self.env), cwd=SHOP,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self.script.gates[name.lower()].arrived.wait(20)
        states = self.json("status", "--once")["runs"]
        [self.runs[name]] = [run["subagent_id"] for run in states if run["state"] == "running"]
        return process

    def ended_ones(self) -> None:
        """Make the runs that have ended."""
        self.script.otter = self.run("Otter", "--model", "offline", "--name", "prices")
        self._on_a_terminal()
        earlier = ("--context-from", self.script.otter)
        self.run("Heron", "--plan", *earlier, "--rationale", "to compare", "--blocked-tools", "read_webpages")
        failed = self.run("Lynx", code=20)
        self.runs["Lynx again"] = self.json("run", "--retry", failed, "--yes", "--max-cost", "0.40")["subagent_id"]
        process = self.begun("Marten")
        self.ava("cancel", self.runs["Marten"], "--reason", "the marten is not wanted any more")
        process.wait(20)
        self.run("Vole", "--max-iterations", "5", code=13)
        group = self.json(
            "run", "--parallel", "researcher", "Finch: what does it cost?", "Wren: what does it cost?", "--workspace",
            str(SHOP), "--yes", "--max-cost", "0.30", "--group-max", "0.50", "--group-timeout", "5m",
        )  # fmt: skip
        self.runs |= {name: run["subagent_id"] for name, run in zip(("Finch", "Wren"), group["runs"], strict=True)}
        process = self.begun("Mole")
        self.ava("send", self.runs["Mole"], "In euros, please.")
        self.script.gates["mole"].released.set()
        assert process.wait(20) == 0
        process = self.begun("Stoat")
        process.kill()
        process.wait()
        time.sleep(1)  # what it had started goes with it
        self.ava("resume", self.runs["Stoat"])
        self.run("Newt")
        self.ava("erase", self.runs["Newt"], "--yes")
        self.run("Ermine", LOGNAME="ben")
        more = (
            "--workspace",
            str(ADDER),
            "--context",
            "It subtracts.",
            "--namespace",
            "adding.py",
            "--verify",
            "python3 -m unittest",
            "--no-plan",
        )
        self.run("Adder", *more, role="coder")

    def _on_a_terminal(self) -> None:
        """A run of three turns with a file and a finding, approved at a terminal."""
        words = ("Badger: what does it cost?", "--workspace", str(SHOP), "--task-id", "b-1", "--max-cost", "0.25")
        with on_terminal(ROOT, "run", "researcher", *words, cwd=SHOP, env=self.env) as screen:
            screen.until("Start it?")
            screen.type("y\n")
            assert screen.ended() == 0, screen.text
        [self.runs["Badger"]] = [
            run["subagent_id"] for run in self.json("status", "--once")["runs"] if run["task"].startswith("Badger")
        ]

    async def by_a_host(self) -> None:
        """Kill a server with four unfinished runs: one paused, one running, one queued, one not approved."""
        spawn = {"role": "researcher", "workspace": str(SHOP), "max_cost_cents": 50}
        async with serving(ROOT, cwd=SHOP, env=self.env) as host:

            async def proposed(name: str, **more: Any) -> dict[str, Any]:
                return await host.tool("spawn_subagent", **spawn, task=f"{name}: what does it cost?", **more)

            rejected, replaced = await proposed("Raven"), await proposed("Swift", task_id="t-1")
            by = await proposed("Crane", task_id="t-1")
            self.runs |= {"Raven": rejected["subagent_id"], "Swift": replaced["subagent_id"]}
            await anyio.to_thread.run_sync(lambda: self.ava("reject", rejected["pending_id"]))
            for name, has in (("Ibis", "paused"), ("Weasel", "logged"), ("Shrew", "queued")):
                self.runs[name] = await host.start_run(**spawn, task=f"{name}: what does it cost?")
                await self._until(host, self.runs[name], has)
            self.runs["Crane"] = by["subagent_id"]
            self.waits = {name: by[name] for name in ("subagent_id", "pending_id", "approval_line")}
            await host.tool("read_ava_logs", search="weasel")
            assert self.script.gates["weasel"].arrived.is_set()
            await anyio.sleep(2)  # the files below logs/ are written
            host.process.kill()
            self.made_s = time.time()

    async def _until(self, host: Any, run_id: str, has: str) -> None:
        with anyio.fail_after(20):
            while True:
                [run] = (await host.tool("check_subagent", subagent_id=run_id))["runs"]
                if has == "logged" and self.script.gates["weasel"].arrived.is_set():
                    return
                if (has == "paused" and run.get("not_before")) or (has == "queued" and run["state"] == "queued"):
                    return
                await anyio.sleep(0.05)

    def facts(self) -> dict[str, Any]:
        """What this version says of the root. It verifies first, because some commands add entries."""
        verified = self.json("verify")
        shown = {name: self.json("show", run_id) for name, run_id in self.runs.items()}
        for each in shown.values():
            del each["data_root"]
            each.pop("entries", None)
        report = self.json("report", "--all")
        return {
            "version": self.ava("--version").stdout.strip(),
            "made_s": self.made_s,
            "user": USER,
            "runs": self.runs,
            "waits": self.waits,
            "shown": shown,
            "report": {name: report[name] for name in ("total", "by_role", "by_model", "by_ending", "endings")},
            "today": self.json("status", "--all")["today"],
            "verified": {name: verified[name] for name in ("entries", "head")},
        }


def packed(folder: Path, facts: Mapping[str, Any], path: Path) -> None:
    """Pack the data root, without anything that says whose it was."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(path, "w:xz", preset=9) as tar:
        tar.add(folder, "data", filter=plain)
        text = json.dumps(facts, indent=1, ensure_ascii=False).encode()
        info = tarfile.TarInfo(FACTS)
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))


def main() -> None:
    """Make the root, ask this version about it, and pack it as the killed server left it."""
    script = Scripted()
    with (
        same_places(),
        running_model_server(script) as model,
        reached(model) as way,
        tempfile.TemporaryDirectory() as t,
    ):
        ROOT.mkdir(mode=0o700)
        HOME.mkdir()
        (ROOT / "config.toml").write_text(CONFIG)
        checkout(ADDER, PROJECT)
        maker = Maker(model, script, way)
        maker.ava("memory", "add", "house-rules", "Prices are in euros.")
        maker.ended_ones()
        anyio.run(maker.by_a_host)
        killed = Path(t) / "data"
        shutil.copytree(ROOT, killed, ignore=shutil.ignore_patterns("*.lock", "sandbox"))
        facts = maker.facts()
        path = archive(facts["version"].split()[-1])
        packed(killed, facts, path)
        print(path, path.stat().st_size, json.dumps(facts["runs"]))


if __name__ == "__main__":
    main()
