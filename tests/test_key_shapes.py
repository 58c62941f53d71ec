"""The script that makes the table of key shapes from the rules of gitleaks."""

import json
import sys
from importlib import util
from pathlib import Path

import pytest

spec = util.spec_from_file_location("key_shapes", Path(__file__).parents[1] / "scripts" / "key_shapes.py")
assert spec is not None and spec.loader is not None
key_shapes = util.module_from_spec(spec)
spec.loader.exec_module(key_shapes)

CONTEXT = r"""(?i)[\w.-]{0,50}?(?:acme)(?:[ \t\w.-]{0,20})[\s'"]{0,3}(?:=|>|:{1,3}=|,)[\x60'"\s=]{0,5}"""
TAIL = r"""(?:[\x60'"\s;]|\\[nr]|$)"""
RULES = rf"""
[[rules]]
id = "acme-token"
regex = '''\b(acme_(?:live|test)_(?i)[a-z0-9]{{32}}){TAIL}'''
entropy = 3.5
[[rules]]
id = "acme-key"
regex = '''{CONTEXT}(acmekey-[a-z0-9_-]{{40,60}}){TAIL}'''
[[rules]]
id = "acme-number"
regex = '''{CONTEXT}([a-f0-9]{{32}}){TAIL}'''
[[rules]]
id = "acme-either"
regex = '''acmeold\.[[:alnum:]]{{30}}|\b(ACMENEW-[A-Z0-9]{{30}})\b'''
[[rules]]
id = "acme-short"
regex = '''ac_[a-z]{{4}}'''
[[rules]]
id = "github-pat"
regex = '''ghp_[0-9a-zA-Z]{{36}}'''
"""


def test_takes_the_beginning_and_the_rest_of_keys_that_are_known_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules.toml").write_text(RULES)
    target = tmp_path / "shapes.json"
    monkeypatch.setattr(key_shapes, "TARGET", target)
    monkeypatch.setattr(
        sys, "argv", ["key_shapes.py", str(tmp_path / "rules.toml"), "--commit", "abc", "--date", "today"]
    )
    key_shapes.main()
    made = json.loads(target.read_text())
    assert made["about"]["license"].startswith("MIT") and "abc" in made["about"]["source"]
    assert made["shapes"] == [
        ["acme-token", ["acme_live_", "acme_test_"], "(?i:[a-z0-9]{32})", 3.5],
        ["acme-key", ["acmekey-"], "(?i:[a-z0-9_-]{40,60}+)", 0],
        ["acme-either", ["acmeold."], "[A-Za-z0-9]{30}", 0],
        ["acme-either", ["ACMENEW-"], "[A-Z0-9]{30}", 0],
    ]
