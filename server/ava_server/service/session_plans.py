"""Resolves the steps of a plan for a session, each role, folder and model once, and finds what is done of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from ava_audit.events import RunStarted
from ava_audit.rows import RunRow, StepRunRow
from ava_audit.units import US_PER_S, format_duration, now_us
from ava_audit.view import View
from ava_roles.tools.registry import specs_of
from ava_server.approval.plain_text import quoted
from ava_server.approval.proposals import brief_of
from ava_server.approval.reach import changes_outside, reads_outside
from ava_server.approval.requests import PlanArgs, read_context_runs
from ava_server.approval.resolve import resolve_run_config
from ava_server.approval.resolve_context import ResolveContext
from ava_server.approval.resolve_plan import KnownWork, ResolvedStep, earlier_of, resolve_plan
from ava_server.approval.steps import MOST_NAMED, PlannedStep, StepFaults, escape_braces
from ava_server.core.errors import AvaError, BadInput, Refused, ToolMissing
from ava_server.core.ids import label
from ava_server.core.names import quote_name, quote_names
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import ReusedRun, RunConfig, StepConfig, config_of
from ava_server.run_config.parts import EarlierRun
from ava_server.runs.plan.plan import PlanInputs, PlanLog, task_with_names
from ava_server.runs.record.plan_state import ended_well, result_of, reused_rows
from ava_server.runs.turn.context import ConfigNotSupported
from ava_server.runs.turn.reuse import CHANGED, changed_paths, differing_parts
from ava_server.service.access import Access, Operations
from ava_server.service.record import CallContext

RESOLVE_S = 30.0
"""Seconds that the check of all steps may take; 200 of them took 0.5 where it was measured."""


class PlanResolver(Operations):
    """Resolves plans of one session."""

    async def resolve(
        self, args: PlanArgs, steps: Sequence[PlannedStep], caller: CallContext, before: RunRow | None = None
    ) -> tuple[RunConfig, Brief, ResolveContext]:
        """Return a plan's configuration and texts, and the context of its first step.

        `before` is the earlier plan that this one continues: results of its unchanged steps are used again.

        Raises:
            BadInput: Names up to ten steps that cannot run as they are, each with what to do; or nothing is left to do.
            Refused: They take too long to check.
        """
        resolved, first_context = await self._resolve_steps(args, steps, caller, self._steps_files(before))
        background = first_context.background
        arguments = args.model_dump(exclude_unset=True, exclude={"steps", "rationale", "ask", "retry_of", "again"})
        config, brief = resolve_plan(args, resolved, background=background, asked=arguments)
        if before is None:
            return config, brief, first_context
        known = await _EarlierPlan(self._access, before, config, brief, args).known_work()
        if all(_is_done(known[step.id], step) for step in steps):
            raise BadInput(
                f"retry_of: every step of {label(before)} is done and unchanged, so there is nothing to run; name"
                " steps in `again` to run them anew"
            )
        config, brief = resolve_plan(
            args, resolved, background=background, asked=arguments, known=known, goes_on_from=before.id
        )
        return config, brief, first_context

    def _steps_files(self, before: RunRow | None) -> tuple[str, ...]:
        """Return the files from which the steps of a plan and of the one before it were read."""
        files: dict[str, None] = {}
        if self._session.steps_file is not None:
            files[self._session.steps_file] = None
        if before is not None:
            for step in config_of(before.config).steps:
                files.update(dict.fromkeys(step.config.steps_files))
        return tuple(sorted(files))

    async def _resolve_steps(
        self, args: PlanArgs, steps: Sequence[PlannedStep], caller: CallContext, steps_files: tuple[str, ...]
    ) -> tuple[list[ResolvedStep], ResolveContext]:
        """Return the resolved steps, and the context of the first. Raises BadInput with all faults at once, Refused."""
        contexts: dict[tuple[Any, ...], ResolveContext] = {}
        resolved: list[ResolvedStep] = []
        faults = StepFaults()
        by_id = {step.id: step for step in steps}
        try:
            with anyio.fail_after(RESOLVE_S):
                for step in steps:
                    context = await self._context(step, contexts, caller)
                    try:
                        one = await self._resolve_step(step, by_id, context, caller.degraded)
                        resolved.append(_without_files(one, steps_files))
                    except ToolMissing as error:
                        faults.add(step.id, self._access.explain(error))
                    except (AvaError, ConfigNotSupported) as error:
                        faults.add(step.id, error)
        except TimeoutError:
            raise Refused(f"the steps were not checked within {RESOLVE_S:g} s: a folder or a server is slow") from None
        for name in args.again or ():
            if name not in by_id:
                ids = quote_names(list(by_id), MOST_NAMED)
                faults.add_of_plan(f"again: there is no step {quote_name(name)}; there are {ids}")
                break
        faults.refuse()
        return resolved, contexts[_context_key(steps[0])]

    async def before(self, retry_of: str) -> RunRow:
        """Return the ended plan that `retry_of` names. Raises BadInput if it names no plan, or one that goes on."""
        run = await self._access.run(retry_of, "retry_of")
        if not run.is_plan:
            raise BadInput(f"retry_of: {label(run)} is not a plan, and steps were given; leave one of the two out")
        if not run.ended:
            raise BadInput(f"retry_of: {label(run)} has not ended; wait for it, or cancel it first")
        return run

    async def arguments(self, run: RunRow) -> dict[str, Any]:
        """Return the arguments with which a plan can be proposed again. Raises BadInput if its texts were erased."""
        brief = await self._store.read(lambda view: brief_of(view, run))
        if brief is None:
            raise BadInput(f"retry_of: the texts of {label(run)} were erased; propose the steps again")
        config = config_of(run.config)
        steps = [_arguments_of(step, brief.of_step(step.id)) for step in config.steps]
        arguments = {name: value for name, value in config.asked.items() if name not in ("task_id", "reuse_s")}
        return {**arguments, "steps": steps}

    async def _context(
        self, step: PlannedStep, contexts: dict[tuple[Any, ...], ResolveContext], caller: CallContext
    ) -> ResolveContext:
        """Return the context in which a step is resolved. Steps with the same role, model, runner and folder share it.

        `contexts` has those that were made already, and gets the new one.
        """
        key = _context_key(step)
        if key not in contexts:
            session = self._session
            contexts[key] = await self._runtime.resolve_context(
                step.args, session.user, session.folders, caller.record.begin, session.through
            )
        return contexts[key]

    async def _resolve_step(
        self, step: PlannedStep, by_id: Mapping[str, PlannedStep], context: ResolveContext, degraded: bool
    ) -> ResolvedStep:
        """Resolve one step to what its runs will have: their configuration and texts, and the tools' specs.

        `degraded`: run without the tools that this installation lacks. Raises as `resolve_run_config`.
        """
        rows = [await self._access.run(run_id, "context_from") for run_id in step.args.context_from or ()]
        earlier_runs: tuple[EarlierRun, ...] = ()
        if rows:
            earlier_runs = await self._store.read(lambda view: read_context_runs(view, rows))
        # A step reads the results of runs that its arguments name, and of earlier steps of its plan.
        earlier = earlier_runs + earlier_of(step, dict(by_id))

        def resolve() -> ResolvedStep:
            config, brief = resolve_run_config(step.args, context, earlier, degraded, is_step=True)
            setup = self._runtime.run_setup
            config = setup.with_cost_figures(config, brief, self._session.user, context.recent)
            return ResolvedStep(step, config, brief, specs_of(config.tools, context.tools))

        return await anyio.to_thread.run_sync(resolve)


@dataclass(frozen=True)
class _Unequal:
    """A run that is to happen, and ended runs of its step of which none is equal.

    Attributes:
        mark: Its mark; None where it can have none.
        others: These runs with their marks.
    """

    mark: str | None
    others: Sequence[tuple[str | None, StepRunRow]]

    def why(self, config: RunConfig) -> str:
        """Return why none of them counts, by the one that is most like it; empty where no other is left. Blocking."""
        marked = [(mark, row) for mark, row in self.others if mark is not None]
        if not self.others:
            return ""
        if self.mark is None or not marked:
            return "what it can read is too much to be compared, or cannot be read"
        ours = self.mark
        parts, row = min(((differing_parts(ours, mark), row) for mark, row in marked), key=lambda each: len(each[0]))
        reasons: list[str] = []
        for part in parts:
            reason = CHANGED[part]
            if part == "folder" and config.workspace is not None:
                paths = changed_paths(config.workspace, config.steps_files, row.started_us or 0)
                reason += _paths_words(paths)
            reasons.append(reason)
        return ", and ".join(reasons)


MOST_PATHS = 3
"""Most changed paths of a folder that a proposal names."""
PATH_CHARS = 60


def _paths_words(paths: Sequence[str]) -> str:
    """`: "plan.toml"`; of many the first, and how many more; empty without any."""
    if not paths:
        return ""
    words = ", ".join(quoted(path, PATH_CHARS) for path in paths[:MOST_PATHS])
    if len(paths) > MOST_PATHS:
        words += f" and {len(paths) - MOST_PATHS:,} more"
    return f": {words}"


class _EarlierPlan(Operations):
    """Finds the runs of an earlier plan for which a proposed one need not pay again.

    It goes step by step: the inputs of a step are known only if all steps that it needs are done and unchanged. So a
    changed step runs again, and so does everything that depends on it.
    """

    def __init__(self, access: Access, before: RunRow, config: RunConfig, brief: Brief, args: PlanArgs) -> None:
        super().__init__(access)
        self._before = before
        self._config = config
        self._briefs = {step.id: brief.of_step(step.id) for step in config.steps}
        self._again = frozenset(args.again or ())
        self._reuse_s = args.reuse_s
        self._oldest_us = now_us() - int(args.reuse_s * US_PER_S)
        self._inputs = PlanInputs(self._runtime.render_result, self._runtime.day_caps)

    async def known_work(self) -> dict[str, KnownWork]:
        """Return, by step id, what the earlier plan has done of each step of the proposed plan."""
        known: dict[str, KnownWork] = {}
        done: set[str] = set()  # the steps of which every run is done and unchanged
        for step in self._config.steps:
            first = [name for name in step.needs if name not in done]
            if not first:
                work = await self._work_of(step, known)
            else:  # an earlier step runs again, so the inputs of this one are not known yet
                work = await self._store.read(partial(self._changed_work, step=step, first=first))
            known[step.id] = work
            if _is_done(work, step):
                done.add(step.id)
        return known

    def _changed_work(self, view: View, step: StepConfig, first: Sequence[str]) -> KnownWork:
        """Return the work of a step of which nothing is reused: only the runs that would happen a second time.

        `first`: the steps that it needs and that run before it.
        """
        why = ""
        if any(row.step == step.id for row in self._ended_runs(view, step)):
            named = ", ".join(f'"{name}"' for name in first)
            why = f"it needs the step{'s' if len(first) > 1 else ''} {named}"
        return KnownWork(repeats=self._repeats(view, step, 1), again_why=why)

    async def _work_of(self, step: StepConfig, known: Mapping[str, KnownWork]) -> KnownWork:
        """Return what the earlier plan has done of a step whose inputs are known; `known` is that of earlier steps."""
        proposed = self._with_reused(known)
        setup = self._runtime.run_setup
        brief = self._briefs[step.id]
        mark_of_run = await anyio.to_thread.run_sync(setup.marker, self._session.user, step.config, brief)
        brief = brief.model_copy(update={"task": task_with_names(step, brief)})

        def query(view: View) -> tuple[KnownWork, _Unequal | None]:
            log = PlanLog(view, self._before, self._inputs, now_us(), str, proposed)
            length: int | None = None
            items: list[int | None] = [None]  # a step without a list has one run, which has no item
            if step.foreach is not None:
                counted = log.items(step)
                if isinstance(counted, str):  # why there is no list
                    return KnownWork(), None
                length = counted
                items = list(range(1, min(length, step.at_most) + 1))
            reusable: dict[str | None, list[StepRunRow]] = {}
            if step.id not in self._again:
                for row in self._candidates(view, step):
                    reusable.setdefault(_mark_of(view, row), []).append(row)
            reused: list[ReusedRun] = []
            unequal: _Unequal | None = None
            if reusable:
                for item in items:
                    inputs = log.inputs_of(step, item)
                    earlier = [run.id for run in step.config.context_from] + [row.id for row in inputs.runs]
                    mark = mark_of_run(brief, inputs.texts, earlier)
                    equal = reusable.get(mark) if mark is not None else None
                    if equal:  # the same texts, inputs and configuration; each result counts once
                        row = equal.pop(0)
                        reused.append(ReusedRun(id=row.id, item=item, ended_us=row.ended_us or 0))
                    elif unequal is None:
                        others = [(other, row) for other, rows in reusable.items() for row in rows]
                        unequal = _Unequal(mark, [each for each in others if each[1].step == step.id])
            left = len(items) - len(reused)
            why = self._why_none(view, step) if left and not reusable else ""
            return KnownWork(tuple(reused), self._repeats(view, step, left), length, why), unequal

        work, unequal = await self._store.read(query)
        if unequal is not None:
            why = await anyio.to_thread.run_sync(unequal.why, step.config)
            work = replace(work, again_why=why)
        return work

    def _why_none(self, view: View, step: StepConfig) -> str:
        """Return why no run of the earlier plan's step may count again; empty where there is none."""
        ended = [row for row in self._ended_runs(view, step) if row.step == step.id]
        if not ended:
            return ""
        if step.id in self._again:
            return "`again` names it"
        if not any(ended_well(row, step.config, result_of(view, row)) for row in ended):
            return "it has no usable result"
        return f"its result is older than {format_duration(self._reuse_s)}"

    def _with_reused(self, known: Mapping[str, KnownWork]) -> RunConfig:
        """Return the proposed plan with the runs that its steps reuse, as far as they are known."""
        steps: list[StepConfig] = []
        for step in self._config.steps:
            if step.id in known:
                step = step.model_copy(update={"reused": known[step.id].reused})
            steps.append(step)
        return self._config.model_copy(update={"steps": tuple(steps)})

    def _candidates(self, view: View, step: StepConfig) -> list[StepRunRow]:
        """Return the runs of the earlier plan's step that ended well and are not too old."""
        rows = self._ended_runs(view, step)
        if reads_outside(step.config):
            rows = [row for row in rows if (row.ended_us or 0) >= self._oldest_us]
        return [row for row in rows if ended_well(row, step.config, result_of(view, row))]

    def _ended_runs(self, view: View, step: StepConfig) -> list[StepRunRow]:
        """Return the ended runs of the earlier plan's step, and those that it reused itself.

        The runs of steps that the proposed plan does not have follow: the step may have been renamed.
        """
        own: list[StepRunRow] = []
        of_others: list[StepRunRow] = []
        rows = [row for row in view.step_runs(self._before.id) if row.ended]
        for earlier in config_of(self._before.config).steps:
            rows += reused_rows(view, earlier)
        for row in rows:
            if row.step == step.id:
                own.append(row)
            elif row.step not in self._briefs:
                of_others.append(row)
        return own + of_others

    def _repeats(self, view: View, step: StepConfig, left: int) -> tuple[str, ...]:
        """Return the earlier runs of a step with effects outside Ava, if its `left` new runs would have them again."""
        if left == 0 or not changes_outside(step.config):
            return ()
        rows = [row for row in self._ended_runs(view, step) if row.step == step.id]
        return tuple(row.id for row in rows if row.started_us is not None)


def _without_files(one: ResolvedStep, steps_files: Sequence[str]) -> ResolvedStep:
    """Return a step for whose folder these files do not count, where they lie in it."""
    folder = one.config.workspace
    if folder is None:
        return one
    real_folder = Path(os.path.realpath(folder))
    inside: list[str] = []
    for file in steps_files:
        real_file = Path(os.path.realpath(file))
        if real_folder in real_file.parents:
            inside.append(str(Path(folder) / real_file.relative_to(real_folder)))
    return replace(one, config=one.config.model_copy(update={"steps_files": tuple(inside)}))


def _is_done(work: KnownWork, step: PlannedStep | StepConfig) -> bool:
    """Tell whether every run of a step is done and unchanged."""
    return len(work.reused) == work.at_most(step.at_most)


def _mark_of(view: View, row: StepRunRow) -> str | None:
    """Return the mark of a run, which another run has only if all that it works with is the same."""
    entry = view.last_entry(row.id, "RunStarted")
    if entry is None or not isinstance(entry.fact, RunStarted):
        return None
    return entry.fact.mark


def _arguments_of(step: StepConfig, brief: Brief) -> dict[str, Any]:
    """Return the arguments of a step as a call gives them."""
    arguments = {name: value for name, value in step.config.asked.items() if name not in ("name", "task_id")}
    arguments |= brief.model_dump(exclude_none=True, include={"task", "context", "system_prompt"})
    if step.run:  # the task of a proposal is not a template
        arguments["task"] = escape_braces(brief.task)
    arguments |= {"id": step.id, "if_fails": step.if_fails}
    if step.needs:
        arguments["after"] = list(step.needs)
    if step.foreach is not None:
        arguments |= {"foreach": step.foreach.text, "at_most": step.listed_most}
    return arguments


def _context_key(step: PlannedStep) -> tuple[Any, ...]:
    args = step.args
    return args.role, args.model, args.runner, args.workspace
