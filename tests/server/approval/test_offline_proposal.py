"""What is proposed without a language model: the offline reader takes what it can serve, and the rest is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.runtime import Lab, open_lab

WITHOUT_MODEL = {"AVA_MODEL_BASE_URL": "", "AVA_MODEL": ""}
OFFLINE = "offline/extractive"


async def refused(lab: Lab, role: str, **more: object) -> str:
    """Propose something that is refused; return why. Nothing is proposed."""
    answer = await lab.call("spawn_subagent", role=role, task="Who pays?", workspace=str(lab.workspace), **more)
    assert answer.status == "failed", answer
    assert not list(await lab.store.read(lambda view: view.runs()))
    return str(answer.message)


async def test_a_role_that_judges_is_refused_without_a_model_and_told_how_to_get_one(tmp_path: Path) -> None:
    async with open_lab(tmp_path, env=WITHOUT_MODEL) as lab:
        why = await refused(lab, "code_reviewer")
    assert why.startswith("code_reviewer needs a language model, and no language model is used")
    assert "set a model: give a key, or a local endpoint such as Ollama's in AVA_MODEL_BASE_URL with AVA_MODEL" in why


async def test_a_role_that_judges_is_refused_for_the_offline_reader_beside_a_configured_model(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        why = await refused(lab, "code_reviewer", model=OFFLINE)
    assert why.endswith("set a model: leave `model` out, or name one that is configured")


async def test_needs_model_in_a_role_file_refuses_the_offline_reader(tmp_path: Path) -> None:
    roles = tmp_path / "data" / "roles"
    roles.mkdir(parents=True)
    (roles / "judge.md").write_text("---\ndescription: Judges.\nneeds_model: true\n---\nJudge.\n", "utf-8")
    async with open_lab(tmp_path) as lab:
        assert 'the role "judge" needs a language model' in await refused(lab, "judge", model=OFFLINE)
        assert (await lab.propose(role="judge")).status == "awaiting_approval"


@pytest.mark.parametrize("role", ["researcher", "data_extractor"])
async def test_a_form_of_the_answer_is_refused_without_a_model_and_quotes_are_not(tmp_path: Path, role: str) -> None:
    async with open_lab(tmp_path, env=WITHOUT_MODEL) as lab:
        why = await refused(lab, role, output_schema={"type": "object"})
        assert why == "output_schema: the offline reader only quotes passages; set a model, or leave it out"
        shown = (await lab.propose(role=role, task="Who pays?")).message
        assert "the offline reader finds passages" in shown
        assert "does not translate: ask in the language of the files" in shown
