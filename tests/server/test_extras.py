"""Without an extra: each command says which it needs, with a command that adds it; a tool does what the core can."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.machinery import ModuleSpec
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType

import pytest

import ava_extras
from ava_extras import EXTRAS, ExtraMissing, has_extra, install_command
from ava_roles.errors import ToolFailed
from ava_roles.sandbox.paths import Root
from ava_roles.texts import parser_process, web_page
from ava_roles.texts.extracted import FORMATS
from ava_roles.texts.passages import Query
from ava_roles.texts.reading import FolderReader
from ava_roles.texts.store import TextStore
from ava_server.cli import app
from ava_server.http import server
from ava_server.http.http_settings import Reach
from ava_server.service.checks import machine


@pytest.fixture(autouse=True)
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The core alone: no package of an extra is found or imported, and no module of one was."""
    for name in [*sys.modules]:
        if any(name == extra.module for extra in EXTRAS.values()):
            monkeypatch.delitem(sys.modules, name)
    for package in {package for extra in EXTRAS.values() for package in extra.packages}:
        monkeypatch.setitem(sys.modules, package, None)
    has_extra.cache_clear()
    yield
    has_extra.cache_clear()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AVA_DATA_ROOT", str(tmp_path / "data"))
    return tmp_path


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["ui"], "web"),
        (["passkey", "add", "phone"], "web"),
        (["serve", "--http"], "team"),
        (["connect"], "team"),
        (["init", "claude-code", "--http"], "team"),
        (["eval", "run", "starter", "--model", "offline", "--yes"], "eval"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_a_command_says_which_extra_it_needs(
    place: Path, capsys: pytest.CaptureFixture[str], command: list[str], extra: str
) -> None:
    assert app.main(command) == app.CONFIGURATION
    said = " ".join(capsys.readouterr().err.split())
    assert said == f"ava: {EXTRAS[extra].need} the extra {extra}; add it with: {install_command(extra)}"
    assert not (place / "data").exists()


@pytest.mark.parametrize("extra", EXTRAS)
def test_loading_an_extra_without_its_packages_is_one_sentence(extra: str) -> None:
    with pytest.raises(ExtraMissing, match=rf"need.? the extra {extra}; add it with: .*\[{extra}\]"):
        ava_extras.load(extra)


def test_a_package_that_cannot_be_loaded_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ava_extras, "has_extra", lambda _name: True)  # psycopg is there, and libpq is not
    with pytest.raises(ExtraMissing, match=r"\[postgres\]' \(what is installed cannot be loaded: .*psycopg"):
        ava_extras.load("postgres")


def test_a_fault_of_ours_is_not_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ava_extras.Extra("It needs", "ava_server.dashboard.nothing_here", ())
    monkeypatch.setattr(ava_extras, "EXTRAS", {"dashboard": broken})
    with pytest.raises(ModuleNotFoundError):
        ava_extras.load("dashboard")


class Installation:
    """What the files of an installation say of it."""

    def __init__(self, origin: object) -> None:
        self._origin = origin

    def read_text(self, _name: str) -> str | None:
        return None if self._origin is None else json.dumps(self._origin)


CHECKOUT = {"url": "file:///home/ava%20clone", "dir_info": {}}
AT = "4f2a" * 10
GIT = {"url": "https://example.org/ava.git", "vcs_info": {"vcs": "git", "commit_id": AT}}


@pytest.mark.parametrize(
    ("origin", "mark", "words"),
    [
        (None, None, [sys.executable, "-m", "pip", "install", "ava-subagents[web]"]),
        (CHECKOUT, None, [sys.executable, "-m", "pip", "install", "/home/ava clone[web]"]),
        (
            {**CHECKOUT, "dir_info": {"editable": True}},
            None,
            [sys.executable, "-m", "pip", "install", "-e", "/home/ava clone[web]"],
        ),
        (
            GIT,
            None,
            [sys.executable, "-m", "pip", "install", f"ava-subagents[web] @ git+https://example.org/ava.git@{AT}"],
        ),
        (CHECKOUT, "uv-receipt.toml", ["uv", "tool", "install", "/home/ava clone[web,team]"]),
        (None, "pipx_metadata.json", ["pipx", "install", "--force", "ava-subagents[web,team]"]),
    ],
    ids=["index", "checkout", "editable", "git", "uv tool", "pipx"],
)
def test_the_command_that_adds_an_extra_fits_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: object, mark: str | None, words: list[str]
) -> None:
    monkeypatch.setattr("importlib.metadata.distribution", lambda _name: Installation(origin))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    pip = ModuleType("pip")  # an environment of uv has none
    pip.__spec__ = ModuleSpec("pip", None)
    monkeypatch.setitem(sys.modules, "pip", pip)
    monkeypatch.setattr(ava_extras, "has_extra", lambda name: name == "team")  # `uv tool` and pipx would drop it
    if mark is not None:
        (tmp_path / mark).touch()
    assert shlex.split(install_command("web")) == words


def test_an_environment_of_uv_without_pip_is_told_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.distribution", lambda _name: Installation(None))
    monkeypatch.setitem(sys.modules, "pip", None)
    assert install_command("web") == f"uv pip install --python {sys.executable} 'ava-subagents[web]'"


def test_what_uvx_runs_from_its_cache_is_told_how_to_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = tmp_path / "uv" / "archive-v0" / "a1"
    cached.mkdir(parents=True)
    monkeypatch.setattr("importlib.metadata.distribution", lambda _name: Installation({"url": "file:///ava.whl"}))
    monkeypatch.setattr(sys, "prefix", str(cached))
    monkeypatch.setattr(ava_extras, "has_extra", lambda _name: False)
    assert install_command() == "uv tool install 'ava-subagents @ file:///ava.whl'"
    assert install_command("web") == "uv tool install 'ava-subagents[web] @ file:///ava.whl'"


def test_this_installation_knows_where_it_comes_from() -> None:
    if distribution("ava-subagents").read_text("direct_url.json") is not None:
        assert str(Path(__file__).parents[2]) in install_command("web")


def test_doctor_names_the_missing_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    from ava_server.service.checks import Setup

    (found,) = machine.extras(Setup({}))
    assert found.state == "note" and found.text.startswith(f"without {', '.join(EXTRAS)};")
    assert install_command(*EXTRAS) in found.what_to_do
    monkeypatch.setattr(machine, "has_extra", lambda _name: True)
    assert list(machine.extras(Setup({}))) == []


# -- tools ------------------------------------------------------------------------------------------------------------

NEEDED = "Ava has no extra `documents` here; `ava doctor` shows the command that adds it"


def test_documents_that_need_an_extra_say_so() -> None:
    for kind in filter(lambda each: each.extra, FORMATS):
        with pytest.raises(ToolFailed, match=f"^this {kind.name} cannot be read: {NEEDED}$"):
            parser_process.read_document(kind, b"%PDF-")


def test_of_a_page_remain_its_words_and_the_reader_is_told() -> None:
    paragraph = "<p>The quinces of the <b>lower</b> orchard are picked in late October.</p>"
    page = web_page.read_html(
        f"<html><head><title>x</title></head><body><h1>Harvest</h1>{paragraph * 5}</body></html>", ""
    )
    assert page.text.splitlines()[:2] == ["Harvest", "The quinces of the lower orchard are picked in late October."]
    assert page.note is not None and "without headings and links" in page.note
    empty = web_page.read_html("<html><script></script><div id='root'></div></html>", "")
    assert empty.note is not None and "JavaScript" in empty.note


async def test_a_search_names_documents_that_it_cannot_read(tmp_path: Path) -> None:
    (tmp_path / "report.pdf").write_bytes(b"%PDF-1.7")
    with closing(TextStore(None)) as texts, closing(Root.open(tmp_path)) as root:
        found = await FolderReader(root, texts).read("", Query("pump"), 60)
    assert found.failed == {"report.pdf": "documents, which need the extra `documents`"}


# -- a server over HTTP -----------------------------------------------------------------------------------------------


def test_a_server_without_pages_says_what_would_add_them() -> None:
    text = server._serving(Reach())
    assert "pages for people" not in text
    assert text.endswith(
        f"Press Ctrl-C to stop. Pages in a browser need the extra web; add it with: {install_command('web')}"
    )
