"""`save_artifact`: flat, bounded, and with a digest that can be checked."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from ava_roles.errors import AccessRefused, ToolFailed
from ava_roles.sandbox.paths import Root
from ava_roles.tool import ToolContext, ToolOutput
from ava_roles.tools.run import SaveArtifact, SaveArtifactArgs


@pytest.fixture
def at(tmp_path: Path) -> Iterator[ToolContext]:
    root = Root.open(tmp_path)
    yield ToolContext(artifacts=root)
    root.close()


async def save(at: ToolContext, name: str, content: str) -> ToolOutput:
    with anyio.fail_after(20):
        return await SaveArtifact()(SaveArtifactArgs(name=name, content=content), at)


async def test_saves_an_artifact_and_returns_its_size_and_digest(at: ToolContext) -> None:
    got = await save(at, "prices.csv", "a,b\n1,ü\n")
    digest = hashlib.sha256("a,b\n1,ü\n".encode()).hexdigest()
    assert got.text == f"saved prices.csv: 9 bytes, sha256 {digest}"
    assert at.artifacts is not None
    assert at.artifacts.read("prices.csv") == ("a,b\n1,ü\n".encode(), False)
    await save(at, "prices.csv", "new")
    assert [entry.name for entry in at.artifacts.entries()] == ["prices.csv"]


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "a/b", "../a", "/etc/x", "a\\b", ".hidden", "a.", "a b", "a\0b", "a\nb", "ä", "CON"),
        *("nul.txt", "x" * 101, "-rf", "~root"),
    ],
)
async def test_rejects_invalid_file_names(at: ToolContext, name: str) -> None:
    with pytest.raises(AccessRefused):
        await save(at, name, "x")
    assert at.artifacts is not None
    assert not at.artifacts.entries()


async def test_limits_the_size_and_number_of_artifacts(at: ToolContext) -> None:
    with pytest.raises(ToolFailed, match="more than 1,000,000"):
        await save(at, "big.txt", "ü" * 500_001)
    for number in range(20):
        await save(at, f"{number}.txt", "x")
    with pytest.raises(ToolFailed, match="20 artifacts already"):
        await save(at, "one-more.txt", "x")
    await save(at, "3.txt", "replaced")


async def test_rejects_names_that_differ_only_in_case_and_lone_surrogates(at: ToolContext) -> None:
    await save(at, "Report.md", "x")
    with pytest.raises(ToolFailed, match=r"Report\.md"):
        await save(at, "report.md", "x")
    with pytest.raises(ToolFailed, match="half characters"):
        await save(at, "a.txt", "\ud800")


async def test_reports_that_the_run_has_no_artifacts_folder() -> None:
    with pytest.raises(ToolFailed, match="no folder for artifacts"):
        await save(ToolContext(), "a.txt", "x")
