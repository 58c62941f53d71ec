"""Build the docs site: `python scripts/docs_site.py`, with the group `docs` of pyproject.toml installed.

The pages are those of docs/, with the changelog and the guide for contributors. Pictures come along; any other link
that leaves the pages goes to the repository's address. A link to a missing page or heading ends the build.

The site of a version is in build/site/VERSION. Beside it are `versions.json`, which the choice of a version shows, and
a page that leads to the newest. `--into FOLDER` adds the version to a site that has earlier ones.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
DOCS = REPOSITORY / "docs"
PAGES = REPOSITORY / "build" / "pages"
BUILT = REPOSITORY / "build" / "built-pages"
ADDRESS = "https://github.com/ava-subagents/ava/blob/main"
BESIDE = {REPOSITORY / "CHANGELOG.md": "changelog.md", REPOSITORY / "CONTRIBUTING.md": "contributing.md"}
"""Pages outside docs/, with their names on the site."""
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
_PICTURES = (".gif", ".png", ".svg", ".webp")


def gather() -> None:
    """Write the pages, with every link to where it leads on the site.

    Raises:
        SystemExit: A link leads to a file that is not there.
    """
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(DOCS, PAGES)
    places = {path: PAGES / path.relative_to(DOCS) for path in DOCS.rglob("*.md")}
    places |= {source: PAGES / name for source, name in BESIDE.items()}
    for source, place in places.items():
        text = source.read_text("utf-8")
        place.write_text(_LINK.sub(lambda link: _target(link, source, places), text), "utf-8")  # noqa: B023


def _target(link: re.Match[str], source: Path, places: dict[Path, Path]) -> str:
    target, anchor = (source.parent / link[1]).resolve(), link[2] or ""
    if not target.exists():
        raise SystemExit(f"{source.relative_to(REPOSITORY)} points to {link[1]}, which is not there")
    if target.suffix in _PICTURES:
        (PAGES / "pictures").mkdir(exist_ok=True)
        places = {target: Path(shutil.copy2(target, PAGES / "pictures"))}
    if target not in places:
        return f"{ADDRESS}/{target.relative_to(REPOSITORY).as_posix()}{anchor}"
    here = PAGES / (BESIDE.get(source) or source.relative_to(DOCS))
    return Path(os.path.relpath(places[target], here.parent)).as_posix() + anchor


def build(site: Path) -> None:
    """Add the site of this version to a folder of sites.

    Raises:
        CalledProcessError: The build found a fault, and has printed it.
    """
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    version: str = project["version"]
    gather()
    shutil.rmtree(BUILT, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    shutil.rmtree(site / version, ignore_errors=True)
    shutil.copytree(BUILT, site / version)
    names = [path.parent.name for path in site.glob("*/sitemap.xml")]
    names.sort(key=lambda name: [int(part) for part in re.findall(r"\d+", name)], reverse=True)
    versions = [{"version": name, "title": name, "aliases": []} for name in names]
    (site / "versions.json").write_text(json.dumps(versions), "utf-8")
    (site / "index.html").write_text(f'<meta http-equiv="refresh" content="0; url={names[0]}/">\n', "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the docs site.")
    parser.add_argument("--into", type=Path, default=REPOSITORY / "build" / "site", metavar="FOLDER")
    build(parser.parse_args().into)
