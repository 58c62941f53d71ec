"""Other people's files in the pages: unchanged, with their licences, and light enough."""

from __future__ import annotations

import hashlib
import re

from support.repository import REPOSITORY

STATIC = REPOSITORY / "server" / "ava_server" / "web" / "static"
_ROW = re.compile(r"^\| .*? \| `([\w.]+)` \| (0BSD|MIT) \| `([0-9a-f]{64})` \|$", re.MULTILINE)
_MOST_BYTES = 150_000


def test_each_copied_file_is_the_one_in_the_documentation_and_has_its_licence() -> None:
    page = (REPOSITORY / "docs" / "reference" / "dependencies.md").read_text("utf-8")
    listed = {name: sha for name, _licence, sha in _ROW.findall(page)}
    assert {each.name for each in STATIC.iterdir() if ".min." in each.name} == set(listed)
    for name, sha in listed.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == sha, name
        assert (STATIC / f"{name.partition('.')[0]}.LICENSE").read_text().strip()


def test_all_static_files_together_stay_small_and_load_nothing() -> None:
    texts = {each.name: each.read_text("utf-8") for each in STATIC.iterdir() if each.suffix in (".js", ".css", ".svg")}
    assert sum(len(text.encode()) for text in texts.values()) <= _MOST_BYTES
    for name in [name for name in texts if ".min." not in name]:
        assert not re.search(r"https?://(?!www\.w3\.org/)|@import|url\(", texts[name]), name
