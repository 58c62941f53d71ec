"""What `scripts/conformance.py` makes of the suite's results. .ci/run has it run the suite itself."""

from __future__ import annotations

import json
import sys
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
ERA = "2025-11-25"


@pytest.fixture(scope="module")
def conformance() -> ModuleType:
    spec = util.spec_from_file_location("conformance", REPOSITORY / "scripts" / "conformance.py")
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules.setdefault("conformance", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("statuses", "excused", "code", "line", "well"),
    [
        ({"ping": "SUCCESS", "pong": "SUCCESS"}, [], 0, "2 checks passed, 0 failed as expected, 0 failed", True),
        ({"ping": "SUCCESS", "pong": "FAILURE"}, ["one:pong"], 0, "1 checks passed, 1 failed as expected", True),
        ({"ping": "SUCCESS", "pong": "FAILURE"}, [], 1, "1 checks passed, 0 failed as expected, 1 failed", False),
        ({"ping": "SUCCESS", "pong": "WARNING"}, [], 0, "0 failed as expected, 1 failed", False),
        ({"ping": "SUCCESS"}, ["one:ping"], 0, "expected to fail, and did not: one:ping", False),
        ({"ping": "SUCCESS"}, ["one:gone"], 0, "expected to fail, and did not: one:gone", False),
        ({"ping": "SUCCESS"}, [], None, "1 checks passed", False),
        ({}, [], 0, "0 scenarios", False),
    ],
)
def test_unexpected_failures_and_unexpected_passes_fail_the_run(
    conformance: ModuleType,
    tmp_path: Path,
    statuses: dict[str, str],
    excused: list[str],
    code: int | None,
    line: str,
    well: bool,
) -> None:
    if statuses:
        folder = tmp_path / "results" / "server-one-2026-11-21T04-04-50-934Z"
        folder.mkdir(parents=True)
        checks = [{"id": name, "status": status} for name, status in statuses.items()]
        (folder / "checks.json").write_text(json.dumps(checks))
    (tmp_path / "expected.yml").write_text(yaml.safe_dump({"server": excused}))
    told, is_well = conformance.told(ERA, tmp_path / "results", tmp_path / "expected.yml", code)
    assert line in told
    assert is_well is well


def test_every_expected_failure_has_one_check_and_a_reason(conformance: ModuleType) -> None:
    for era in conformance.ERAS:
        text = (REPOSITORY / "tests" / "conformance" / f"expected-failures-{era}.yml").read_text()
        for group in text.split("\n\n")[1:]:
            reason, *entries = [line for line in group.splitlines() if line.strip() not in ("", "server:")]
            assert reason.lstrip().startswith("# "), reason
            checks = [entry.split("#")[0].strip() for entry in entries if not entry.lstrip().startswith("#")]
            assert checks and all(check.startswith("- ") and check.count(":") == 1 for check in checks), checks


@pytest.mark.parametrize("folder", ["conformance", "hosts"])
def test_everything_from_npm_is_pinned_by_its_hash(folder: str) -> None:
    lock = json.loads((REPOSITORY / "tests" / folder / "package-lock.json").read_text())
    asked = json.loads((REPOSITORY / "tests" / folder / "package.json").read_text())
    assert lock["packages"][""]["dependencies"] == asked["dependencies"]
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert len(packages) > 50
    assert [name for name, package in packages.items() if not package.get("integrity", "").startswith("sha512-")] == []
