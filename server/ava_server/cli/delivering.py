"""The results of runs that somebody at a terminal waited for, handed over: shown, in a file, as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from ava_server.cli.app import CONFIGURATION
from ava_server.cli.artifacts import SavedFiles, save_artifacts
from ava_server.cli.results import result_text
from ava_server.cli.showing import show_results
from ava_server.cli.terminal import harmless_json, say, tell, write
from ava_server.core.errors import BadInput

if TYPE_CHECKING:
    from ava_server.service.access import Session
    from ava_server.service.responses import RunAnswer
    from ava_server.service.runtime import Runtime


async def deliver(
    runtime: Runtime,
    session: Session,
    run_ids: Sequence[str],
    command: str,
    *,
    as_json: bool,
    out: Path | None = None,
    artifacts: Path | None = None,
) -> int:
    """Hand over the results, put on record that they were, and return the exit code.

    It is that of the first run that did not succeed. Where all did, and a file could not be copied, it says so.

    Args:
        runtime: The open data root.
        session: Whose they are.
        run_ids: The runs, which have ended.
        command: The command that hands them over, as the log names it.
        as_json: As one JSON object; of several, with a list of them.
        out: A file in place of the standard output.
        artifacts: A folder that the files they handed over are copied to; of several each has one of its own there.

    Raises:
        BadInput: The file cannot be written.
    """
    from ava_server.cli.log_access import note_fetched, whole_answer
    from ava_server.cli.views import exit_code
    from ava_server.core.ids import label

    found = [await whole_answer(runtime.store, run_id, runtime.instances.alive) for run_id in run_ids]
    answers = [answer for _run, answer in found]
    saved: dict[str, SavedFiles] = {}
    for answer in answers if artifacts is not None else ():
        assert artifacts is not None
        source = runtime.settings.paths.artifacts / answer.subagent_id
        folder = artifacts / answer.subagent_id if len(answers) > 1 else artifacts
        saved[answer.subagent_id] = await anyio.to_thread.run_sync(save_artifacts, answer, source, folder)
    if as_json:
        text = _json_of(runtime, answers, saved)
    else:
        text = "\n\n".join(result_text(answer, saved=saved.get(answer.subagent_id)) for answer in answers)
    if out is not None:
        await anyio.to_thread.run_sync(_write_out, out, text)
        for run, _answer in found:
            (tell if as_json else say)(f"{label(run)} {run.state}: written to {out}")
    elif as_json:
        write(text)
    else:
        show_results(answers, saved=saved)
    if saved and (as_json or out is not None):
        tell("\n".join(line for each in saved.values() for line in each.lines()))
    for run, _answer in found:
        await note_fetched(runtime.store, session, command, run)
    faults = any(each.faults for each in saved.values())
    codes = [exit_code(run) for run, _answer in found]
    return next((code for code in codes if code), CONFIGURATION if faults else 0)


def _json_of(runtime: Runtime, answers: Sequence[RunAnswer], saved: dict[str, SavedFiles]) -> str:
    values: list[dict[str, Any]] = []
    for answer in answers:
        copied = saved.get(answer.subagent_id)
        value = answer.model_dump(mode="json", exclude_none=True)
        values.append({**value, **({"artifacts_saved": copied.as_json()} if copied is not None else {})})
    root = {"data_root": str(runtime.settings.data_root)}
    one = {**root, **values[0]} if len(values) == 1 else {**root, "group_id": answers[0].group_id, "runs": values}
    return harmless_json(json.dumps(one, ensure_ascii=False))


def _write_out(path: Path, text: str) -> None:
    from ava_roles.wrap import clean

    try:
        path.write_text(clean(text)[0] + "\n", "utf-8")
    except OSError as error:
        raise BadInput(f"--out: {path} cannot be written: {error.strerror}; `ava show` has the result") from error
