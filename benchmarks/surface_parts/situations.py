"""Every situation that a run can be in, played with real servers; what is known of each comes from who plays it."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from support.http_server import token
from support.model_server import Fail, Gate, ModelServer, Say, Step, run_model_server
from support.pages.browser import PAID
from support.repositories.coding import PROJECT, RIGHT, VERIFY
from support.repositories.projects import checkout, git
from support.runtime import submit
from support.stdio import read_answer, read_log

from ava_server.core.data_root import os_user
from surface_parts.world import Clock, World, Yes, changed, holding_gate, open_world, show_pages, task_of

WORLDS = ("main", "slot", "held", "money", "lost", "interrupted")
"""The data roots; each has the situations that its settings or its end allow."""
_NEEDS = {"held": "slot", "money": "main"}
"""What has to be played before: the backup of a root, and the size of a call."""
SOURCE, FEE = "provider-a.md", "Payments cost 1.4 % and $0.25 each."
SUMMARY = "Provider A is cheaper below $40."
QUESTION = "Should I count the shop that closed in March?"
INVALID_KEY = "invalid api key"
CONTEXT = "The contracts were signed in Lisbon in 2024."
TASKS: dict[str, str] = {
    "single": "What does each provider charge for a payment?",
    "coder": "Make add add two numbers.",
    "question": "Which of our three shops refunds fees?",
    "several": "Count the invoices of the spring.",
    "several, the other": "Count the invoices of the autumn.",
    "free": "Read the price list for nothing.",
    "unknown cost": "Measure the tariff that nobody bills.",
    "erased": "Look up the confidential rebate.",
    "not mine": "Look up what eve wants to know.",
    "remote": "Look up the fee from far away.",
    "no answer": "Where do zebras sleep?",
    "error": "List the prices of all providers abroad.",
    "cancelled": "Write the long history of fees.",
    "rejected": "Ask every bank of the continent.",
    "superseded": "Compare the notice periods in the contracts.",
    "waits for approval": "Compare the terms of both contracts.",
    "newer": "Look up the fee for a newer program.",
    "money, first": "Hold the money of the day.",
    "money": "Wait for the money of the day.",
    "slot, first": "Hold the only slot.",
    "slot": "Wait for the only slot.",
    "lost": "Work until the server is lost.",
    "interrupted": "Work until the server was lost long ago.",
}
FIND, READ, WRITE = "List the contracts.", "Say what each contract costs: {{find}}", "Write one page from {{read}}"
FIX, TELL = "Make add of the calculator add.", "Tell the team about {{fix}}"
GOOD, BAD = "Look up the fee of provider A again.", "List the prices of providers overseas."
ONLY_BAD = "List the prices of providers on the moon."


def _step(name: str, task: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "role": "researcher", "task": task, **more}


def _coding(task: str) -> dict[str, Any]:
    return {
        "role": "coder",
        "task": task,
        "context": "add subtracts at this moment.",
        "namespace": ["adding.py"],
        "verify": VERIFY,
        "plan": False,
    }


STEPS = [_step("find", FIND, context=CONTEXT), _step("read", READ), _step("write", WRITE)]
CODER_STEPS = [{**_coding(FIX), "id": "fix"}, _step("tell", TELL)]
PARTIAL_STEPS = [_step("good", GOOD), _step("bad", BAD, if_fails="continue")]
FAILED_STEPS = [_step("only", ONLY_BAD)]


class Script:
    """The model: it answers by the task that it reads."""

    def __init__(self) -> None:
        self.gates: dict[str, Gate] = {}

    def gate(self, name: str) -> Gate:
        """Return the gate at which the runs of a situation are held."""
        return self.gates.setdefault(name, holding_gate())

    def __call__(self, request: dict[str, Any]) -> Step:
        task = task_of(request)
        turns = sum(each["role"] == "assistant" for each in request["messages"])
        for name in ("cancelled", "money, first", "slot, first", "lost", "interrupted"):
            if TASKS[name] in task and turns == 1:
                return Say(gate=self.gate(name))
        if any(each in task for each in (TASKS["error"], BAD, ONLY_BAD)):
            return Fail(401, {"error": {"message": INVALID_KEY}})
        if TASKS["question"] in task:
            return Say(calls=[("ask", {"question": QUESTION})])
        if FIX in task or TASKS["coder"] in task:
            return Say(calls=[RIGHT]) if turns == 0 else submit("Adding adds.", "Adding adds.")
        if turns == 0:
            usage = None if TASKS["unknown cost"] in task else Say().usage
            return Say("I read the notes first.", [("read_file", {"path": SOURCE})], usage=usage)
        finding = {"claim": "Provider A charges 1.4 % and $0.25", "source": SOURCE, "quote": FEE}
        return submit(SUMMARY, SUMMARY, findings=[finding])


@dataclass
class Situation:
    """A run as it stands now.

    Attributes:
        name: What it is called in surfaces.toml.
        run_id: The run, or the plan.
        known: What the expectations name of it, from who played it.
    """

    name: str
    world: World
    run_id: str
    known: dict[str, str] = field(default_factory=dict[str, str])


class Play:
    """Plays the situations and keeps each."""

    def __init__(self, place: Path, model: ModelServer, script: Script, stack: AsyncExitStack) -> None:
        self._place = place
        self._model = model
        self._script = script
        self._stack = stack
        self._worlds: dict[str, World] = {}
        self.situations: list[Situation] = []

    async def play(self, name: str) -> list[Situation]:
        """Play what happens on one of `WORLDS`, before it on that which it needs; return the situations."""
        before = len(self.situations)
        needed = _NEEDS.get(name)
        if needed is not None and needed not in self._worlds:
            await self.play(needed)
        method: Callable[[], Awaitable[None]] = getattr(self, f"_{name}")
        await method()
        return self.situations[before:]

    def _add(self, name: str, world: World, run_id: str, **known: Any) -> None:
        found = {key: str(value) for key, value in known.items()}
        yes = world.yes.get(run_id)
        if yes is not None:
            found |= {"screen": yes.screen, "minutes": "|".join(yes.minutes)}
        found = {"user": os_user(), "id": run_id, **found}
        self.situations.append(Situation(name, world, run_id, found))

    async def _world(self, name: str, settings: str = "", **more: Any) -> World:
        """Open a world; `settings` are limits."""
        limits = f"[limits]\nspawns_per_hour = 1000\nquestion_wait_s = 7200\n{settings or 'running_per_user = 10'}\n"
        opening = open_world(self._place / name, self._model, f"proposal_ttl_s = 7200\n{PAID}\n{limits}", **more)
        world = await self._stack.enter_async_context(opening)
        (world.notes / SOURCE).write_text(f"# Provider A\n\n{FEE}\n")
        self._worlds[name] = world
        return world

    # -- the situations ------------------------------------------------------------------------------------------------

    async def _main(self) -> None:
        world = await self._world("main")
        await self._single(world)
        await self._plan(world)
        await self._coder(world)
        await self._plan_with_a_coder(world)
        await self._failed_plans(world)
        await self._endings(world)
        await self._cancelled(world)
        await self._erased(world)
        await self._not_begun(world)
        await self._others(world)
        await self._waiting(world)
        await self._newer(world)

    async def _run(self, world: World, name: str, screen: str = "terminal", **more: Any) -> str:
        """Propose and approve the run of a situation, and return its id."""
        made = await world.propose(task=TASKS[name], **more)
        await world.approve(screen, made)
        return str(made["subagent_id"])

    def _spent(self, world: World, *markers: str) -> dict[str, Any]:
        return {
            "calls": sum(world.calls(marker) for marker in markers),
            "micros": sum(world.micros(marker) for marker in markers),
        }

    async def _single(self, world: World) -> None:
        run_id = await self._run(world, "single", "terminal", context=CONTEXT)
        await world.ended(run_id)
        self._add("single", world, run_id, **self._spent(world, TASKS["single"]))

    async def _plan(self, world: World) -> None:
        plan = await world.propose(name="Contracts", steps=STEPS, max_cost_cents=120)
        await world.approve("browser", plan)
        plan_id = str(plan["group_id"])
        await world.ended(plan_id)
        world.shown_last[plan_id] = await world.ava("show")
        runs = await _runs_of(world, plan_id)
        texts = [FIND, "Say what each contract costs", "Write one page from"]
        shares = {
            f"micros_{name}": world.micros(text) for name, text in zip(("find", "read", "write"), texts, strict=True)
        }
        self._add("plan", world, plan_id, **self._spent(world, *texts), **shares)
        world.yes[runs["find"]] = world.yes[plan_id]
        self._add("step of a plan", world, runs["find"], plan=plan_id, **self._spent(world, FIND))

    async def _coder(self, world: World) -> None:
        repository = checkout(world.root.parent / "coder", PROJECT)
        made = await world.propose(**_coding(TASKS["coder"]), workspace=str(repository), max_cost_cents=100)
        await world.approve("form", made)
        run_id = str(made["subagent_id"])
        await world.ended(run_id)
        known = {"branch": _branch_in(repository), "repository": repository}
        self._add("coder", world, run_id, **known, **self._spent(world, TASKS["coder"]))

    async def _plan_with_a_coder(self, world: World) -> None:
        repository = checkout(world.root.parent / "plan-with-a-coder", PROJECT)
        made = await world.propose(name="Repair", steps=CODER_STEPS, workspace=str(repository), max_cost_cents=100)
        await world.approve("form", made)
        plan_id = str(made["group_id"])
        await world.ended(plan_id)
        known = {"branch": _branch_in(repository), "repository": repository}
        self._add("plan with a coder", world, plan_id, **known, **self._spent(world, FIX, "Tell the team about"))
        step = (await _runs_of(world, plan_id))["fix"]
        world.yes[step] = world.yes[plan_id]
        self._add("step that is a coder", world, step, plan=plan_id, **known, **self._spent(world, FIX))

    async def _failed_plans(self, world: World) -> None:
        for name, steps, texts in (
            ("partial", PARTIAL_STEPS, (GOOD, BAD)),
            ("plan that failed", FAILED_STEPS, (ONLY_BAD,)),
        ):
            plan = await world.propose(name=name.capitalize(), steps=steps, max_cost_cents=100)
            await world.approve("terminal", plan)
            plan_id = str(plan["group_id"])
            await world.ended(plan_id)
            self._add(name, world, plan_id, **self._spent(world, *texts))

    async def _endings(self, world: World) -> None:
        run_id = await self._run(world, "error", "browser")
        await world.ended(run_id)
        self._add("error", world, run_id, **self._spent(world, TASKS["error"]))
        run_id = await self._run(world, "no answer", model="offline")
        await world.ended(run_id)
        self._add("no answer", world, run_id)
        run_id = await self._run(world, "free", model="custom:gratis")
        await world.ended(run_id)
        self._add("free", world, run_id, calls=world.calls(TASKS["free"]), micros=0)
        run_id = await self._run(world, "unknown cost")
        await world.ended(run_id)
        self._add("unknown cost", world, run_id, calls=world.calls(TASKS["unknown cost"]))

    async def _cancelled(self, world: World) -> None:
        run_id = await self._run(world, "cancelled", "browser")
        await world.until(self._script.gate("cancelled").arrived.is_set, "the call of the cancelled run")
        await world.ava("cancel", run_id)
        await world.ended(run_id)
        self._add("cancelled", world, run_id, calls=world.calls(TASKS["cancelled"]))

    async def _erased(self, world: World) -> None:
        run_id = await self._run(world, "erased")
        await world.ended(run_id)
        await world.ava("erase", run_id, "--yes")
        self._add("erased", world, run_id, **self._spent(world, TASKS["erased"]))

    async def _not_begun(self, world: World) -> None:
        """Play a proposal that was rejected, and one that a newer one replaced."""
        made = await world.propose(task=TASKS["rejected"])
        clock = Clock()
        assert world.visitor is not None
        world.visitor.decide(made["pending_id"], "reject")
        world.yes[made["subagent_id"]] = Yes("browser", os_user(), clock.minutes)
        self._add("rejected", world, made["subagent_id"])
        first = await world.propose(task=TASKS["superseded"], task_id="notice")
        second = await world.propose(task=TASKS["superseded"], task_id="notice", max_cost_cents=40)
        self._add("superseded", world, first["subagent_id"], by=second["pending_id"])

    async def _others(self, world: World) -> None:
        """Play what comes over HTTP: a run of another user, and one of the person's own that was approved from far."""
        assert world.team is not None
        texts = {"not mine": token(world.root, "eve", name="of-eve"), "remote": world.text}
        for name, text in texts.items():
            async with world.team.client(text) as client:
                given = {"role": "researcher", "task": TASKS[name]}
                made, _text = read_answer(await client.call_tool("spawn_subagent", given))
                run_id = str(made["subagent_id"])
                if name == "remote":
                    await world.approve_over_http(made)
                else:
                    clock = Clock()
                    lines = {"pending_ids": [made["pending_id"]], "approving": [made["approval_line"]]}
                    await client.call_tool("confirm_spawn", lines)
                    world.yes[run_id] = Yes("call", "eve", clock.minutes)
            await world.ended(run_id)
            self._add(name, world, run_id, **self._spent(world, TASKS[name]))

    async def _waiting(self, world: World) -> None:
        run_id = await self._run(world, "question", "form")
        await world.logged(run_id, "Asked")
        self._add("a question", world, run_id, **self._spent(world, TASKS["question"]))
        made = [
            await world.propose(task=TASKS[name], name=name.partition(", ")[2] or "first")
            for name in ("several", "several, the other")
        ]
        await world.approve("form", *made)
        ids = [str(each["subagent_id"]) for each in made]
        await world.ended(*ids)
        group = next(key for key in reversed(world.yes) if key.startswith("G-"))
        await world.ended(group)
        spent = self._spent(world, TASKS["several"], TASKS["several, the other"])
        self._add("several", world, group, one=ids[0], other=ids[1], **spent)
        waiting = await world.propose(task=TASKS["waits for approval"], context=CONTEXT)
        await world.look_at(waiting)
        self._add("waits for approval", world, waiting["subagent_id"], pending=waiting["pending_id"])

    async def _newer(self, world: World) -> None:
        """Play a run of a program whose configuration this one cannot read."""
        newer = changed(
            "import json",
            "from ava_server.run_config.config import RunConfig",
            "dump, load = RunConfig.model_dump, RunConfig.model_validate_json",
            "def dumped(self, **how):",
            "    found = dump(self, **how)",
            "    low, high = found['estimated_minutes'] if 'estimated_minutes' in found else (0, 0)",
            "    return {**found, 'estimated_minutes': {'least': low, 'most': high}}",
            "def loaded(stored, **how):",
            "    found = json.loads(stored)",
            "    if isinstance(found['estimated_minutes'], dict):",
            "        found['estimated_minutes'] = list(found['estimated_minutes'].values())",
            "    return load(json.dumps(found), **how)",
            "RunConfig.model_dump, RunConfig.model_validate_json = dumped, loaded",
        )
        own = World(world.root, world.notes, world.model, world.env, newer)
        said = await own.ava(
            "run", "researcher", TASKS["newer"], "--workspace", str(world.notes), "--max-cost", "0.60", "--yes"
        )
        found = re.search(r"S-[0-9a-f]{6}", said)
        assert found is not None, said
        world.yes[found[0]] = Yes("script", os_user(), ())
        self._add("a newer program's", world, found[0], **self._spent(world, TASKS["newer"]))

    async def _slot(self) -> None:
        world = await self._world("slot", "running_per_user = 1")
        first = await self._run(world, "slot, first")
        await world.until(self._script.gate("slot, first").arrived.is_set, "the call of the run with the slot")
        run_id = await self._run(world, "slot", "browser")
        await anyio.sleep(3)  # until a server has noted that it could not take it
        self._add("waits for a slot", world, run_id, first=first)

    async def _money(self) -> None:
        """Play a run that waits for the money that another one's call holds."""
        single = self.situation("single")
        reserved = read_log(single.world.root, "CostReserved", run=single.run_id)[0].content
        held = reserved["micros"] + reserved.get("wrap_micros", 0)
        most = held * 17 // 100_000  # the first run fits, and a second one beside it does not
        world = await self._world("money", f"user_daily_cents = {most}\ninstallation_daily_cents = {most}")
        first = await self._run(world, "money, first")
        await world.until(self._script.gate("money, first").arrived.is_set, "the call of the run with the money")
        run_id = await self._run(world, "money", "browser")
        await world.logged(run_id, "MoneyAwaited")
        self._add("waits for money", world, run_id, first=first)

    async def _lost(self) -> None:
        """Play a run whose server was killed; the others that show it may take no runs."""
        world = await self._world("lost", pages=False)
        run_id = await self._run(world, "lost", "terminal")
        await self._kill(world, "lost")
        await show_pages(world, self._stack, {"AVA_LIMITS__RUNNING_PER_USER": "0"})
        self._add("lost its server", world, run_id, **self._spent(world, TASKS["lost"]))

    async def _interrupted(self) -> None:
        """Play a run whose server was killed so long ago that a person has to resume it."""
        command = changed("import ava_server.runs.record.claims as claims", "claims.TAKEOVER_WITHIN_US = 0")
        world = await self._world("interrupted", pages=False, command=command)
        run_id = await self._run(world, "interrupted", "terminal")
        await self._kill(world, "interrupted")
        await show_pages(world, self._stack, {})
        self._add("interrupted", world, run_id, **self._spent(world, TASKS["interrupted"]))

    async def _kill(self, world: World, name: str) -> None:
        await world.until(self._script.gate(name).arrived.is_set, f"the second call of {name}")
        assert world.host is not None
        world.host.wire.process.kill()
        await world.host.wire.process.wait()
        world.host = None

    async def _held(self) -> None:
        """Play a backup that was restored while its run was at work."""
        before = self._worlds["slot"]
        place = self._place / "restored"
        said = await before.ava("backup", str(self._place / "backup"))
        root = place / "data"
        place.mkdir()
        restored = World(root, before.notes, before.model, before.env)
        said += await restored.ava("restore", str(self._place / "backup"), "--yes")
        run_id = self.situation("waits for a slot").known["first"]
        assert root.exists(), said
        world = await self._stack.enter_async_context(open_world(place, self._model, "", root=root))
        world.yes[run_id] = before.yes[run_id]
        self._add("held", world, run_id, **self._spent(world, TASKS["slot, first"]))

    def situation(self, name: str) -> Situation:
        """Return a situation that was played."""
        return next(each for each in self.situations if each.name == name)


def _branch_in(repository: Path) -> str:
    """Return the one branch of a run that a repository has, by git."""
    found = git(repository, "for-each-ref", "--format=%(refname:short)", "refs/heads/ava/").split()
    assert len(found) == 1, found
    return found[0]


async def _runs_of(world: World, plan_id: str) -> dict[str, str]:
    """Return the runs of a plan by their steps: ids, for the addresses of what is looked at."""
    assert world.host is not None
    plan = json.loads(await world.host.read(f"ava://runs/{plan_id}"))["plan"]
    return {each["step"]: next(iter(each["runs"])) for each in plan["all_steps"] if each["runs"]}


@asynccontextmanager
async def open_play(place: Path) -> AsyncGenerator[Play]:
    """Open a play below a folder; the servers that it starts live until the block ends."""
    script = Script()
    with run_model_server(script) as model:
        async with AsyncExitStack() as stack:
            yield Play(place, model, script, stack)
            for gate in script.gates.values():
                gate.released.set()
