"""Lines of the log for people: words for what the log itself calls otherwise."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread
import pytest
from support.model_server import Say
from support.runtime import PRICED, hand_over, open_lab
from support.terminal import ava

from ava_server.core.ids import model_words
from ava_server.render.entry_lines import entry_line

NAMES_OF_THE_LOG = ("host_call", "elicitation", "uncosted", "carried", "same_call", "not_billed")
FAILS = Say("", [("read_file", {"path": "nowhere.md"})])


async def test_a_line_says_who_decided_what_a_guardrail_did_and_who_was_shown_the_result(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [*[FAILS] * 4, hand_over()], config=PRICED) as lab:
        run_id = (await lab.outcome())["subagent_id"]
        await anyio.to_thread.run_sync(lambda: ava(lab.root, "show", run_id))
        lines = [entry_line(entry, width=500) for entry in await lab.entries(run_id)]
    text = "\n".join(lines)
    assert "approved by a call of the host" in text
    assert "GuardrailTripped the same call with the same result: read_file, the model was told" in text
    assert f"ToolResult ava show (success) showed the result of {run_id}" in text
    assert " tokens, billed $0." in text
    assert [name for name in NAMES_OF_THE_LOG if name in text] == []


@pytest.mark.parametrize(
    ("model", "words"), [("offline/extractive", "offline reader"), ("openrouter:x/offline", "openrouter:x/offline")]
)
def test_the_offline_reader_is_called_so(model: str, words: str) -> None:
    assert model_words(model) == words


async def test_a_subagents_own_words_stay_as_they_are(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [Say("I carried host_call home.", FAILS.calls), hand_over()], config=PRICED) as lab:
        run_id = (await lab.outcome())["subagent_id"]
        lines = [entry_line(entry, width=500) for entry in await lab.entries(run_id)]
    assert any("AssistantMessage I carried host_call home." in line for line in lines)
