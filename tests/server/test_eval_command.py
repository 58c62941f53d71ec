"""`ava eval`: a run as a case, and a folder of recorded runs as a regression test with exit codes."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import anyio.to_thread
import pytest
from support.databases import write_config
from support.model_server import Say
from support.runtime import PRICED, hand_over, open_lab
from support.terminal import ava


async def test_a_folder_of_recorded_runs_is_a_regression_test(tmp_path: Path) -> None:
    answers = [Say(calls=[("scratchpad", {"note": "half of it"})]), hand_over()]
    async with open_lab(tmp_path, [*answers, *answers], config=PRICED) as lab:
        runs = [await lab.start(), await lab.start()]
        for run_id in runs:
            await lab.ended(run_id)
        asked, head = len(lab.server.requests), lab.store.head

        async def command(*args: str) -> CompletedProcess[str]:
            return await anyio.to_thread.run_sync(partial(ava, lab.root, "eval", *args))

        for run_id in runs:
            done = await command("add", run_id, "--to", str(tmp_path / "suite"), "--contains", "the answer")
            assert done.returncode == 0 and f"Case {run_id}:" in done.stdout, done.stderr
        done = await command("replay", str(tmp_path / "suite"))
        assert done.returncode == 0, done
        assert done.stdout.endswith("\n2 recorded runs: 2 the same, 0 differ. No call was made.\n"), done

        worse = tmp_path / "worse.md"
        worse.write_text("---\nname: researcher\ndescription: Finds facts.\nmodel: balanced\n---\nGuess.\n")
        done = await command("replay", runs[0], "--role", str(worse))
        assert done.returncode == 1 and "First in turn 1: the system prompt" in done.stdout, done
        assert "\n  +Guess.\n" in done.stdout

        dearer = PRICED.replace("input = 3.0", "input = 4.0")
        write_config(lab.root, f"{dearer}\n[workspace]\nroots = [{json.dumps(str(lab.workspace))}]\n")
        done = await command("replay", runs[0])
        assert done.returncode == 0 and "custom:test has another price by now" in done.stdout, done
        done = await command("replay", runs[0], "--model", "openrouter:anthropic/claude-haiku-4.5")
        assert done.returncode == 1 and f"{runs[0]}: differs; its requests are the same.\n" in done.stdout, done
        cost = re.search(r"Cost: \$([\d.]+) before; about \$([\d.]+) now. Calls: (\d) before; \3 now.\n", done.stdout)
        assert cost is not None and float(cost[1]) == pytest.approx(3 * float(cost[2])), done

        recording = tmp_path / "suite" / f"{runs[1]}.jsonl"
        text = recording.read_text()
        lines = text.splitlines(keepends=True)
        hostile = {
            "approval": (
                text.replace('"max_iterations":', '"max_iterations":"many","n":'),
                "is not valid (1 validation",
            ),
            "ending": ("".join(line for line in lines if "RunEnded" not in line), "it has not ended yet"),
            "nested": ("[" * 100_000, "1: it is not an entry of a log"),
            "no-line": ("not a line\n", "1: it is not an entry of a log"),
            "task": ("".join(line for line in lines if "UserMessage" not in line), "proposal, task or approval"),
            "wire": (text.replace('"wire":', '"wired":'), "it cannot be run again (KeyError('wire'))"),
        }
        for name, (content, _why) in hostile.items():
            (recording.parent / f"{name}.jsonl").write_text(content)
        (recording.parent / "endless.jsonl").symlink_to("/dev/zero")
        done = await command("replay", str(tmp_path / "suite"), "--json")
        assert done.returncode == 2, done
        said = json.loads(done.stdout)
        assert [run["same"] for run in said["runs"]] == [True, True]
        faults = {each["name"]: each["fault"] for each in said["faults"]}
        assert "it is not a regular file" in faults.pop("endless")
        assert list(faults) == sorted(hostile)
        for name, (_content, why) in hostile.items():
            assert why in faults[name], faults
        assert (len(lab.server.requests), lab.store.head) == (asked, head)
