"""Servers and workers on one Postgres log, while at random machines, the network, the database and the engine fail.

Each process has a data root of its own, and cables of its own to the database and to the engine that delivers runs (if
there is one), as on a machine of its own; where it can be, each worker is in a network namespace of its own. Its way to
the model provider is never cut, so a process that has lost the database could still spend. The model works for some
turns, fails at times, and is often slow. `run.py` compares the log with what the model server and the hosts have seen.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread
import psycopg

from support.chaos.hosts import USERS, Hosts
from support.engines.servers import Engine, delivery_config
from support.http_server import COMMAND, READY, token
from support.model_server import EVENTS, Fail, Gate, HangUp, ModelServer, Raw, Say, Step, events, run_model_server
from support.network.cable import WAYS, Cable, run_cables
from support.network.namespaces import COMMON, NetworkNamespace, network_namespaces, why_missing
from support.postgres import PostgresServer
from support.processes import environment_of, lives
from support.runtime import PRICED
from support.stdio import AVA, environment, make_root, model_env

TURNS = 4
NOTE = ("scratchpad", {"note": "half of it"})
DONE = ("submit_result", {"summary": "done", "output": "twelve cents"})


class Model:
    """A script whose next step is drawn at each request; `steps` counts each kind of answer."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.steps: Counter[str] = Counter()

    def __call__(self, request: dict[str, Any]) -> Step:
        with self._lock:
            step = self._next(request)
            self.steps[type(step).__name__] += 1
            return step

    def _next(self, request: dict[str, Any]) -> Step:
        chance, messages = self._random.random(), request["messages"]
        turn = sum(message["role"] == "assistant" for message in messages)
        calls = [DONE] if turn >= TURNS or self._random.random() < 0.15 else [NOTE]
        gate = Gate(within_s=self._random.choice([0.01, 0.2, 0.5, 1.0, 3.0]))
        if chance < 0.04:
            return Fail(self._random.choice([429, 500, 503]), retry_after="0.2")
        if chance < 0.07:
            return HangUp(gate)
        if chance < 0.10:
            return Raw(events(Say("half", calls))[:3], EVENTS, chunked=True, cut=True)
        most = int(request.get("max_tokens") or request.get("max_completion_tokens") or 100)
        size = len(json.dumps(request))
        usage = {"prompt_tokens": max(100, size // 10), "completion_tokens": self._random.randint(10, most)}
        return Say("I look.", calls, usage={**usage, "total_tokens": sum(usage.values())}, gate=gate)


Kind = Literal["worker", "server"]
READY_WORKER = "takes subagents from the Postgres database"
UP_S, DOWN_S, END_S = 40.0, 60.0, 240.0
"""Deadlines: a process starts, a process stops after SIGTERM, and all runs have ended after the last fault."""
LOW_USERS, LOW_CENTS, USER_CENTS = USERS[::2], 60, 300
"""Whose day cap is lower than everybody's, and both."""


@dataclass(frozen=True)
class Plan:
    seconds: float  # how long hosts start runs while things fail
    seed: int  # where chance begins. Processes have their own timing, so it repeats the faults, not the run
    workers: int = 3
    servers: int = 2
    lease_s: int = 3
    pause_s: tuple[float, float] = (0.5, 2.5)  # the least and the most time between two faults
    day_cents: int = 100_000  # the cap of the installation's day

    @property
    def config(self) -> str:
        limits = (
            "[limits]\nrunning = 12\nrunning_per_user = 3\nspawns_per_hour = 100000\nextension_wait_s = 0\n"
            f"max_cost_cents = 200\nuser_daily_cents = {USER_CENTS}\ninstallation_daily_cents = {self.day_cents}\n"
        )
        low = "".join(f"[users.{user}]\ndaily_cents = {LOW_CENTS}\nrunning = 2\n" for user in LOW_USERS)
        return f"lease_s = {self.lease_s}\n{limits}{low}" + PRICED.replace("custom:test", "custom:scripted")


@dataclass
class Member:
    """A server or a worker, on a machine of its own; it is started again whenever it has ended."""

    name: str
    kind: Kind
    root: Path
    cable: Cable
    url: str
    env: dict[str, str]
    namespace: NetworkNamespace | None = None
    engine_cable: Cable | None = None
    process: subprocess.Popen[bytes] | None = None
    address: str = ""
    up: bool = False
    busy: bool = False
    killed: bool = False

    @property
    def output(self) -> Path:
        return self.root.with_suffix(".log")

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.killed = self.killed or number == signal.SIGKILL

    async def start(self) -> bool:
        """Start it; False where it has ended at once, e.g. because the database is out of reach."""
        self.output.touch()
        begin = self.output.stat().st_size
        command = [*AVA[:-1], "worker", "--database-url", self.url] if self.kind == "worker" else [AVA[0], *COMMAND]
        if self.namespace is not None:
            command = [*self.namespace.command, *command]
        self.killed, self.up, self.address = False, False, ""
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(  # noqa: ASYNC220 - the fork takes a moment
                command, env=self.env, cwd=self.root.parent, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        end = time.monotonic() + UP_S
        while time.monotonic() < end and self.runs:
            text = self.output.read_bytes()[begin:].decode("utf-8", "replace")
            if self.kind == "worker" and READY_WORKER in text:
                self.up = True
            elif self.kind == "server" and (found := READY.search(text)):
                self.up, self.address = True, f"http://127.0.0.1:{found['port']}"
            if self.up:
                return True
            await anyio.sleep(0.1)
        if self.runs:
            self.signal(signal.SIGKILL)
            self.process.wait()
        return False


@dataclass
class Chaos:
    """A run of everything; `faults` says what was wrong, `counts` what was done."""

    plan: Plan
    folder: Path
    postgres: PostgresServer
    engine: Engine | None = None
    faults: list[str] = field(default_factory=list[str])
    counts: Counter[str] = field(default_factory=Counter[str])
    members: list[Member] = field(default_factory=list[Member])
    tokens: dict[tuple[Path, str], str] = field(default_factory=dict[tuple[Path, str], str])
    ending: bool = False

    def __post_init__(self) -> None:
        self.random = random.Random(self.plan.seed)
        self.direct = self.postgres.database(self.folder)

    # -- members ------------------------------------------------------------------------------------------------------

    def make_members(
        self,
        namespaces: list[NetworkNamespace],
        cables: list[Cable],
        model_url: str,
        engine_cables: Sequence[Cable | None],
    ) -> None:
        """Make each machine's data root, with the same limits and tokens on all.

        `namespaces` are the workers'; `cables` are each one's way to the database, `engine_cables` to the engine.
        """
        database = self.direct.rpartition("/")[2]
        kinds: list[Kind] = ["worker" for _ in range(self.plan.workers)]
        kinds += ["server" for _ in range(self.plan.servers)]
        places = [*namespaces, *(None for _ in kinds[len(namespaces) :])]
        machines = zip(kinds, cables, places, engine_cables, strict=True)
        for number, (kind, cable, place, engine_cable) in enumerate(machines):
            near = "127.0.0.1" if place is None else place.to_database
            url = f"postgresql://ava@{near}:{cable.port}/{database}"
            # Without an engine, the last server also runs what it has approved.
            runs_on = "here" if number == len(kinds) - 1 and self.engine is None else "workers"
            config = f'runs_on = "{runs_on}"\n{self.plan.config}'
            if self.engine is not None and engine_cable is not None:
                config += delivery_config(self.engine, f"{self.engine.kind}://{near}:{engine_cable.port}")
            root = make_root(self.folder / f"{kind}-{number}", config_toml=config)
            env = environment(root, AVA_DATABASE_URL=url, PGPASSWORD=self.postgres.password, PYTHONUNBUFFERED="1")
            member = Member(root.name, kind, root, cable, url, {**env, **model_env(model_url)}, place, engine_cable)
            if kind == "server":
                # All servers share the tokens that the first one has taken into the database.
                shared = {user: text for (_root, user), text in self.tokens.items()}
                self.tokens |= {(root, user): shared.get(user) or token(root, user) for user in USERS}
            self.members.append(member)

    async def keep_up(self, member: Member) -> None:
        """Start a member again whenever it has ended, as a supervisor does."""
        while not self.ending:
            if member.runs:
                await anyio.sleep(0.1)
                continue
            if member.process is not None:
                self._note_end(member)
                await anyio.sleep(self.random.uniform(0.1, 2.0))
            started = await member.start()
            self.counts["starts" if started else "failed starts"] += 1

    def _note_end(self, member: Member) -> None:
        assert member.process is not None
        code = member.process.wait()
        if member.up and not member.killed:
            self.faults.append(f"{member.name} ended by itself with {code}: {member.output.read_text()[-1500:]}")

    # -- faults -------------------------------------------------------------------------------------------------------

    def pick(self) -> Member | None:
        """A member that runs and that no other fault is at work on."""
        free = [member for member in self.members if member.runs and member.up and not member.busy]
        return self.random.choice(free) if free else None

    async def kill(self, member: Member) -> None:
        member.signal(signal.SIGKILL)
        self.counts[f"kill -9 of a {member.kind}"] += 1

    async def stop(self, member: Member) -> None:
        """Stop it for longer than its lease; it wakes up, or is killed in its sleep."""
        member.signal(signal.SIGSTOP)
        self.counts["SIGSTOP for longer than the lease"] += 1
        await anyio.sleep(self.random.uniform(self.plan.lease_s + 0.5, 2 * self.plan.lease_s + 2))
        if self.random.random() < 0.2:
            member.signal(signal.SIGKILL)
            self.counts["killed while stopped"] += 1
        else:
            member.signal(signal.SIGCONT)

    async def unplug(self, member: Member) -> None:
        """Cut it off from the database, both ways or one; what it had sent arrives late or never."""
        ways = self.random.choice([WAYS, WAYS, WAYS[:1], WAYS[1:]])
        link = member.namespace if ways == WAYS else None
        if link is not None:
            await anyio.to_thread.run_sync(link.unplug)
        else:
            member.cable.unplug(*ways)
        what = "network namespace unplugged" if link is not None else "network unplugged"
        self.counts[what if ways == WAYS else f"{what} {ways[0]}"] += 1
        await anyio.sleep(self.random.uniform(1, 2 * self.plan.lease_s + 3))
        if link is not None:
            await anyio.to_thread.run_sync(link.plug_in)
        else:
            member.cable.plug_in(reset=self.random.random() < 0.5)

    async def cut_connections(self) -> None:
        sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database()"
        found = await anyio.to_thread.run_sync(self.ask, f"{sql} AND pid <> pg_backend_pid()")
        self.counts["all connections cut"] += 1
        self.counts["connections cut"] += found[0][0]

    async def restart_database(self, how: signal.Signals) -> None:
        """Stop the database, fast or as in a crash, and start it some time later."""
        await anyio.to_thread.run_sync(self.postgres.stop, how)
        self.counts[f"Postgres stopped with {how.name}"] += 1
        await anyio.sleep(self.random.uniform(0, 3))
        self.postgres.start()  # in this thread: the server ends with the thread that started it

    async def restart_engine(self, engine: Engine) -> None:
        """Kill the engine and start it some time later, sometimes without its store."""
        loses_store = self.random.random() < 0.3
        self.counts["engine killed, its store deleted" if loses_store else "engine killed"] += 1
        if loses_store:
            await anyio.to_thread.run_sync(engine.wipe)
            return
        await anyio.to_thread.run_sync(engine.stop, signal.SIGKILL)
        await anyio.sleep(self.random.uniform(0, 2 * self.plan.lease_s))
        await anyio.to_thread.run_sync(engine.start)

    async def cut_off_engine(self, member: Member) -> None:
        """Cut a member off from the engine alone; it still reaches the database."""
        assert member.engine_cable is not None
        member.engine_cable.unplug()
        self.counts["engine unplugged"] += 1
        await anyio.sleep(self.random.uniform(1, 2 * self.plan.lease_s + 3))
        member.engine_cable.plug_in(reset=self.random.random() < 0.5)

    async def on(self, member: Member, fault: Callable[[Member], Awaitable[None]]) -> None:
        member.busy = True
        try:
            await fault(member)
        finally:
            member.busy = False

    async def play_faults(self, tasks: anyio.abc.TaskGroup) -> None:
        end = time.monotonic() + self.plan.seconds
        faults = [self.kill, self.kill, self.stop, self.stop, self.unplug, self.unplug]
        if self.engine is not None:
            faults.append(self.cut_off_engine)
        while time.monotonic() < end:
            await anyio.sleep(self.random.uniform(*self.plan.pause_s))
            chance = self.random.random()
            if chance < 0.08:
                await self.restart_database(self.random.choice([signal.SIGINT, signal.SIGQUIT]))
            elif chance < 0.2:
                await self.cut_connections()
            elif chance < 0.28 and self.engine is not None:
                await self.restart_engine(self.engine)
            elif (member := self.pick()) is not None:
                tasks.start_soon(self.on, member, self.random.choice(faults))

    # -- the whole ----------------------------------------------------------------------------------------------------

    def ask(self, sql: str) -> list[Any]:
        """Ask the database, without a cable. Blocking."""
        with psycopg.connect(self.direct, autocommit=True, connect_timeout=5) as conn:
            return conn.execute(sql.encode()).fetchall()

    async def unended(self) -> dict[str, str]:
        """The runs that are still to end, and the users that they belong to."""
        sql = "SELECT id, user_id FROM ava.runs WHERE state IN ('queued', 'running')"
        return dict(await anyio.to_thread.run_sync(self.ask, sql))

    async def play(self) -> tuple[ModelServer, Hosts]:
        model = Model(self.plan.seed)
        with ExitStack() as running:
            models = running.enter_context(run_model_server(model))
            namespaces = [] if why_missing() else running.enter_context(network_namespaces(self.plan.workers))
            others = self.plan.workers + self.plan.servers - len(namespaces)
            ways = [*(each.to_database for each in namespaces), *["127.0.0.1"] * others]
            cables = running.enter_context(run_cables(self.postgres.port, ways))
            model_url = models.base_url
            if namespaces:  # what is approved names the provider's address, so it has to be the same everywhere
                (relay,) = running.enter_context(run_cables(models.port, [COMMON]))
                model_url = f"http://{COMMON}:{relay.port}/v1"
            to_engine: Sequence[Cable | None] = [None] * len(ways)
            if self.engine is not None:
                to_engine = running.enter_context(run_cables(self.engine.port, ways))
            self.make_members(namespaces, cables, model_url, to_engine)
            for member in self.members:  # one after another: the first one makes the tables
                assert await member.start(), member.output.read_text()
            hosts = Hosts(self.members, self.tokens, self.plan.seed)
            try:
                async with anyio.create_task_group() as tasks:
                    for member in self.members:
                        tasks.start_soon(self.keep_up, member)
                    async with anyio.create_task_group() as faults, anyio.create_task_group() as busy:
                        for number in range(hosts.count):
                            busy.start_soon(hosts.start_runs, number, time.monotonic() + self.plan.seconds)
                        await self.play_faults(faults)
                    await self._all_end(hosts)
                    self.ending = True
                await self._shut_down()
            finally:
                self._kill_all()
            self.counts["calls of hosts that failed"] = hosts.failures.total()
            self.counts.update({f"calls that failed: {why}": number for why, number in hosts.failures.most_common(8)})
            self.counts.update({f"model server: {what}": number for what, number in model.steps.items()})
            return models, hosts

    async def _all_end(self, hosts: Hosts) -> None:
        """Wait until all runs have ended; what waits for a person is cancelled by its user after a while."""
        began = time.monotonic()
        while (left := await self.unended()) and time.monotonic() - began < END_S:
            if time.monotonic() - began > 30:
                for run, user in left.items():
                    if await hosts.waits_for_a_person(run, user):
                        self.counts["waited for a person, and cancelled"] += 1
                        await hosts.cancel(run, user)
            await anyio.sleep(0.5)
        self.counts["seconds until all runs had ended"] = round(time.monotonic() - began)
        for run in left:
            words = await anyio.to_thread.run_sync(self.ask, f"SELECT text FROM ava.live WHERE run_id = '{run}'")
            self.faults.append(f"{run} did not end within {END_S:g} s: {words}")

    async def _shut_down(self) -> None:
        """Stop all members as a person does, and look for what they leave."""
        for member in self.members:
            if member.runs:
                member.signal(signal.SIGTERM)
        end = time.monotonic() + DOWN_S
        for member in self.members:
            while member.runs and time.monotonic() < end:  # noqa: ASYNC110 - it is another process
                await anyio.sleep(0.05)
            if member.runs or member.process is None or member.process.returncode != 0:
                code = None if member.process is None else member.process.returncode
                self.faults.append(f"{member.name} did not stop in time or failed: {code}")
        left = [pid for pid in _of_folder(self.folder) if lives(pid)]
        self.faults += [f"process {pid} was left behind" for pid in left]
        sql = "SELECT name, kind FROM ava.leases WHERE renewed_at + lease_ms * interval '1 ms' > clock_timestamp()"
        await anyio.sleep(self.plan.lease_s)  # those of killed processes expire
        self.faults += [f"the lease of {lease} is left" for lease in await anyio.to_thread.run_sync(self.ask, sql)]
        for member in self.members:
            if "Traceback" in (text := member.output.read_text("utf-8", "replace")):
                self.faults.append(f"{member.name} wrote a traceback:\n{text[text.index('Traceback') :][:3000]}")

    def _kill_all(self) -> None:
        for member in self.members:
            if member.runs and member.process is not None:
                member.signal(signal.SIGKILL)
                member.process.wait()


def _of_folder(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                root = environment_of(int(entry.name)).get("AVA_DATA_ROOT", "")
            except OSError:
                continue
            if root.startswith(f"{folder}/"):
                found.append(int(entry.name))
    return found
