"""A run's changes to a repository: the commit message, the part of the result about them, and the same as text.

File names and the verify command's output come from a subagent or a repository and belong to the untrusted part of a
result. Branch, commits, counts and outcomes are Ava's own.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ava_audit.events import CommandRun, WorkChecked, WorktreeReady
from ava_roles.wrap import clean
from ava_server.run_config.parts import Coding, StoredFile
from ava_server.runs.record.submit import cut

if TYPE_CHECKING:
    from ava_roles.worktree.spec import Branch, ChangedFile

SUBJECT_CHARS, TASK_CHARS, BODY_COLUMNS = 72, 400, 72
KINDS = ("added", "changed", "removed")
TESTS, NAMED = "tests", "named"
"""What changed files are listed as, besides all of them: tests, and files that the verify command names."""
FILES = 300
"""Most files that a result names."""
LATE = "the commit was not ready in time, and is made right after the end"
ELSEWHERE = "its worktree is on the machine that had the run, and that one did not end it"
_ENDED: Mapping[str, str] = {
    "timeout": "did not end in its time",
    "memory": "was ended for taking more than 2 GiB of memory",
    "disk": "was ended for writing more than 1 GiB",
    "signal": "was ended by a signal",
}


@dataclass(frozen=True)
class KeptChanges:
    """What became of a run's changes.

    Attributes:
        branch: The branch with them; None where nothing was changed, or they could not be kept.
        fault: Why they could not be kept; empty where they were.
        pack: The branch's objects in the database, where it was made in a copy of the repository.
    """

    branch: Branch | None = None
    fault: str = ""
    pack: StoredFile | None = None


def describe_command(run: CommandRun) -> str:
    """Return how a command ended, as the end of a sentence: `failed with exit code 1 after 3.2 s`."""
    after = f" after {run.took_s:g} s"
    if run.passed:
        return f"passed{after}"
    if run.ended != "exited":
        return f"{_ENDED.get(run.ended, 'was ended')}{after}"
    return f"failed with exit code {run.code}{after}"


# -- the commit -------------------------------------------------------------------------------------------------------


def commit_message(
    run_id: str,
    coding: Coding,
    *,
    summary: str = "",
    task: str = "",
    before: CommandRun | None = None,
    passed: CommandRun | None = None,
    status: str = "",
) -> str:
    """Return the commit message: what was done as subject, then the task, the verification, and the run as trailer.

    `summary`: what the model says it did; empty where it has not said so yet. `before`: the outcome of the verify
    command before the work. `passed`: its outcome on exactly this work; None where it was not verified. `status`: how
    the run ended, where it was not verified.
    """
    request = _line(task)
    subject = _line(summary)
    if not subject:
        subject = f"Unfinished: {request}" if request else f"Unfinished work of {run_id}"
    verify = f"`{_line(coding.verify)}`"
    if passed is not None:
        was = "" if before is None else f" (before the change it {describe_command(before)})"
        verified = f"Verified: {verify} {describe_command(passed)}{was}."
    else:
        ended = f": the run ended as {status} before" if status else ": the run ended before"
        verified = f"Not verified{ended} its work passed {verify}."
    body = [verified]
    if request:
        body.insert(0, f"Task: {cut(request, TASK_CHARS)}")
    paragraphs = [cut(subject, SUBJECT_CHARS)]
    for part in body:
        paragraphs.append(textwrap.fill(part, BODY_COLUMNS, break_long_words=False, break_on_hyphens=False))
    paragraphs.append(f"Ava-Run: {run_id}")
    return "\n\n".join(paragraphs) + "\n"


def _line(text: str) -> str:
    """Return the first line of a text that is not empty, without invisible characters."""
    first = next((line for line in clean(text)[0].splitlines() if line.strip()), "")
    return " ".join("".join(char if char.isprintable() else " " for char in first).split())


# -- the result -------------------------------------------------------------------------------------------------------


def build_changes(
    coding: Coding, ready: WorktreeReady | None, check: WorkChecked | None, kept: KeptChanges | None, *, verified: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a result's part about changes: Ava's own words, and the untrusted ones of a subagent or repository.

    `ready`: the worktree before the work; None where it was never ready. `kept`: what became of the changes; None where
    that is not known.
    """
    kept = kept or KeptChanges()
    if ready is None and kept.fault == ELSEWHERE:  # there never was a worktree
        kept = KeptChanges()
    branch = kept.branch
    name = head = to_merge = None
    base = coding.base
    files: Sequence[ChangedFile] = ()
    notes = list(coding.notes)
    if branch is not None:
        name, base, head, files = branch.name, branch.base, branch.head, branch.changed
        notes = [*branch.notes, *coding.notes]
    if name:
        to_merge = f"git -C {shlex.quote(coding.repository)} merge {shlex.quote(name)}"
    listed = _listed(files)
    ours: dict[str, Any] = {
        "repository": coding.repository,
        "branch": name,
        "base": base,
        "head": head,
        "not_kept": kept.fault or None,
        **_counts(files, listed),
        "verified": verified,
        "verify": _verification(coding, ready, check),
        "to_merge": to_merge,
        "notes": notes,
    }
    if kept.pack is not None:
        ours["pack"] = kept.pack.model_dump()
    return ours, _untrusted_part(files, listed, check)


def _listed(files: Sequence[ChangedFile]) -> dict[str, list[str]]:
    """Return the paths of changed files that a person looks at before they rely on the verification."""
    listed: dict[str, list[str]] = {}
    for group in (TESTS, NAMED):
        for kind in KINDS:
            listed[f"{group}_{kind}"] = []
    for file in files:
        if file.test:
            listed[f"{TESTS}_{file.kind}"].append(file.path)
        elif file.named:
            listed[f"{NAMED}_{file.kind}"].append(file.path)
    return listed


def _counts(files: Sequence[ChangedFile], listed: Mapping[str, Sequence[str]]) -> dict[str, int]:
    counts = {
        "files": len(files),
        "added": sum(each.added for each in files),
        "removed": sum(each.removed for each in files),
    }
    for name, paths in listed.items():
        counts[name] = len(paths)
    counts["links"] = sum(each.link is not None for each in files)
    return counts


def _verification(coding: Coding, ready: WorktreeReady | None, check: WorkChecked | None) -> dict[str, Any]:
    return {
        "command": coding.verify,
        "before": _outcome(ready.verify if ready is not None else None),
        "after": _outcome(check.verify if check is not None else None),
        "runs": check.number if check is not None else 0,
    }


def _untrusted_part(
    files: Sequence[ChangedFile], listed: Mapping[str, Sequence[str]], check: WorkChecked | None
) -> dict[str, Any]:
    part: dict[str, Any] = {"files": [_file(each) for each in files[:FILES]]}
    for name, paths in listed.items():
        part[name] = paths[:FILES]
    if check is not None and not check.verify.passed:
        part["failing"] = check.verify.output
    return {name: value for name, value in part.items() if value}


def _outcome(run: CommandRun | None) -> dict[str, Any] | None:
    if run is None:
        return None
    return {"passed": run.passed, "code": run.code, "seconds": run.took_s, "ended": run.ended}


def _file(each: ChangedFile) -> dict[str, Any]:
    link = {"link": each.link} if each.link is not None else {}
    return {"path": each.path, "kind": each.kind, "added": each.added, "removed": each.removed, **link}


# -- in words ---------------------------------------------------------------------------------------------------------


def changes_lines(run_id: str, ours: Mapping[str, Any]) -> list[str]:
    lines = [_branch_line(ours), _verification_line(ours["verify"], verified=ours["verified"])]
    for kind in KINDS:
        count = ours[f"{TESTS}_{kind}"]
        if not count:
            continue
        files = f"{count:,} test files, or files that decide what is tested, were"
        if count == 1:
            files = "1 test file, or file that decides what is tested, was"
        advice = ""
        if kind != "added":
            advice = ": look at that before you rely on the tests"
        lines.append(f"{files} {kind}{advice}.")
    named = _named_line(ours)
    if named:
        lines.append(named)
    links = ours.get("links")
    if links:
        subject = f"{links:,} symbolic links were"
        if links == 1:
            subject = "1 symbolic link was"
        lines.append(f"{subject} added or changed: check the target before you merge.")
    if ours.get("not_fetched"):
        lines.append(f"The branch was made on another machine and is NOT in the repository: {ours['not_fetched']}.")
    elif ours.get("pack") and not ours.get("fetched"):
        lines.append(f"The branch was made on another machine: `ava fetch {run_id}` brings it into the repository.")
    if ours["to_merge"]:
        to_see = ours.get("to_see", f"ava show {run_id} --diff")  # None: the person is on another machine
        see_it = ""
        if to_see:
            see_it = f"See it: {to_see}   "
        lines.append(f"{see_it}Merge it: {ours['to_merge']}")
    lines.extend(f"Note: {note}." for note in ours["notes"])
    return lines


def _named_line(ours: Mapping[str, Any]) -> str:
    """Return a sentence about changed files that the verify command names; empty where there are none."""
    changed = sum(ours.get(f"{NAMED}_{kind}", 0) for kind in KINDS)  # a result of an earlier version has none
    if not changed:
        return ""
    files = "1 file" if changed == 1 else f"{changed:,} files"
    return (
        f"It changed {files} that the verify command, or what that runs, names: if one is a check and not the program"
        " that is checked, look at it before you rely on the outcome."
    )


def _branch_line(ours: Mapping[str, Any]) -> str:
    if ours["not_kept"]:
        return f"What it changed is NOT on a branch: {ours['not_kept']}"
    if ours["branch"] is None:
        return "Nothing was changed; there is no branch."
    files = "1 file" if ours["files"] == 1 else f"{ours['files']:,} files"
    return (
        f"Branch {ours['branch']} of {ours['repository']}: {files}, +{ours['added']:,} −{ours['removed']:,}, commit"
        f" {ours['head'][:12]} on {ours['base'][:12]}."
    )


def _verification_line(verify: Mapping[str, Any], *, verified: bool) -> str:
    before = _verify_words(verify["before"])
    after = _verify_words(verify["after"])
    if verified:
        return f"Verified: `{verify['command']}` {after}; before the work it {before}."
    last = f" the last time it ran, it {after}" if verify["after"] else " it was not run on the work"
    return f"NOT VERIFIED by `{verify['command']}`:{last}; before the work it {before}."


def _verify_words(run: Mapping[str, Any] | None) -> str:
    if run is None:
        return "was not run"
    return describe_command(CommandRun(**run, took_s=run["seconds"]))


def changed_lines(untrusted: Mapping[str, Any]) -> list[str]:
    """Return the untrusted part about changes as lines; the caller wraps them as untrusted."""
    files: Sequence[Mapping[str, Any]] = untrusted.get("files", ())
    lines: list[str] = []
    for each in files:
        what = f"is a symbolic link to {each['link']}" if "link" in each else f"+{each['added']} −{each['removed']}"
        lines.append(f"{str(each['kind']).capitalize()}: {each['path']} {what}")
    for kind in KINDS:
        paths = untrusted.get(f"{TESTS}_{kind}")
        if paths:
            lines.append(f"Tests, and what decides on them, {kind}: {', '.join(paths)}")
        paths = untrusted.get(f"{NAMED}_{kind}")
        if paths:
            lines.append(f"Named by the verify command, {kind}: {', '.join(paths)}")
    failing = untrusted.get("failing")
    if failing:
        lines.append(f"What failed:\n{failing}")
    return lines
