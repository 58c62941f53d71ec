"""What the default caps buy: working turns by role, price and language, on real runs with a scripted model.

    python benchmarks/caps.py [--roles researcher] [--prices balanced] [--file-chars 6000] [--out FILE]

Each cell is one run of Ava with the role's default caps. Its model reads one file a turn, all of the same language and
size, until Ava asks for the result. It reports the tokens that common tokenizers need: 0.25 a character for English,
0.4 for Russian, 0.75 for Chinese. Hosted models report what their cache has; a local one reports no cache.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from audit_parts.report import Report

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.model_server import Say
from support.runtime import DONE, open_lab

from ava_server.models.model_choice import default_tiers
from ava_server.models.prices import Price, look_up

ROLES: dict[str, dict[str, Any]] = {
    "researcher": {},
    "code_reviewer": {},
    "data_extractor": {},
    "custom": {"system_prompt": "You compare prices. Read all files, then give the lowest price."},
    "web_crawler": {"task": "Compare the prices in all files and on https://prices.example/."},
    "coder": {"context": "The files list prices.", "namespace": ["."], "verify": "true", "plan": False},
}
TEXTS = {
    "English": "The carrier charges twelve cents for each minute, and nothing at night or on Sundays.\n",
    "Russian": "Оператор берёт двенадцать центов за минуту, а ночью и по воскресеньям не берёт ничего.\n",
    "Chinese": "运营商每分钟收费十二美分，夜间和星期日不收任何费用，请参阅附表了解详情。\n",
}
ANSWER = 150
"""Tokens of each answer."""


def tokens(text: str) -> int:
    """Return about how many tokens a text has."""
    cyrillic = sum("\u0400" <= char <= "\u04ff" for char in text)
    chinese = sum("\u3000" <= char <= "\u9fff" or "\uff00" <= char <= "\uffef" for char in text)
    return round((len(text) - cyrillic - chinese) * 0.25 + cyrillic * 0.4 + chinese * 0.75)


def model(*, caches: bool) -> Any:
    """Return a script that reads file after file, and hands over when it is told that this is the last turn."""
    seen: dict[str, int] = {}

    def step(request: dict[str, Any]) -> Say:
        prompt = tokens(json.dumps(request, ensure_ascii=False))
        cached, seen["prompt"] = seen.get("prompt", 0) if caches else 0, prompt
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": ANSWER,
            "prompt_tokens_details": {"cached_tokens": min(cached, prompt)},
        }
        if "This is the last turn" in str(request["messages"][-1]["content"]):
            return Say("That is all.", calls=[DONE], usage=usage)
        return Say(f"Next is file {turn}.", calls=[("read_file", {"path": f"{turn:02}.md"})], usage=usage)

    return step


@dataclass(frozen=True)
class Cell:
    """What one run came to."""

    turns: int
    ending: str
    cost_micros: int

    def __str__(self) -> str:
        return f"{self.turns} turns, ${self.cost_micros / 1e6:.2f}, {self.ending}"


def commit_all(folder: Path) -> None:
    """Make a folder a repository with one commit."""
    author = ("-c", "user.name=Benchmark", "-c", "user.email=benchmark@example.com")
    for command in (("init", "-q"), ("add", "."), (*author, "commit", "-q", "-m", "Prices")):
        subprocess.run(["git", *command], cwd=folder, check=True)


async def run(role: str, price: Price | None, text: str, chars: int) -> Cell:
    """Run a role with its default caps, and return how many files it read."""
    config = ""
    if price is not None:
        step = price.steps[0] if price.steps else price  # no prompt here is longer
        rates = {name: getattr(step, name) for name in ("input", "output", "cache_read", "cache_write")}
        config = '[prices."custom:test"]\n' + "".join(f"{name} = {nanos / 1000}\n" for name, nanos in rates.items())
    with tempfile.TemporaryDirectory() as folder:
        async with open_lab(Path(folder), model(caches=price is not None), config=config, check=False) as lab:
            for number in range(100):
                (lab.workspace / f"{number:02}.md").write_text((text * (chars // len(text) + 1))[:chars], "utf-8")
            if role == "coder":
                commit_all(lab.workspace)
            given = {"role": role, "task": "Compare the prices in all files.", "workspace": str(lab.workspace)}
            made = await lab.call("spawn_subagent", **{**given, **ROLES[role]})
            if made.status == "failed":
                return Cell(0, made.message, 0)
            await lab.approve(made)
            ended = await lab.ended(made.subagent_id, 120)
            return Cell(ended.tool_calls, ended.state, ended.cost_micros)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--roles", help="only these, separated by commas")
    options.add_argument("--prices", help="only prices whose name contains this")
    options.add_argument("--file-chars", type=int, default=6_000)
    options.add_argument("--out", type=Path, help="write the table here too, as Markdown")
    chosen = options.parse_args()
    logging.disable(logging.WARNING)
    report = Report()
    prices: dict[str, Price | None] = {"local, free": None}
    for provider, tiers in default_tiers().items():
        for tier, name in tiers.items():
            found = look_up(provider, name, base_url=None)
            assert isinstance(found, Price), found
            step = found.steps[0] if found.steps else found
            prices[f"{provider} {tier} (${step.input / 1000:g}/${step.output / 1000:g})"] = found
    rows: list[list[str]] = []
    for role in ROLES:
        if chosen.roles is not None and role not in chosen.roles.split(","):
            continue
        for name, price in prices.items():
            if chosen.prices is not None and chosen.prices not in name:
                continue
            cells = [anyio.run(run, role, price, text, chosen.file_chars) for text in TEXTS.values()]
            rows.append([f"{role}: {name}", *map(str, cells)])
    report.table("Working turns, cost and ending", ["role and price", *TEXTS], rows)
    if chosen.out is not None:
        chosen.out.write_text("\n".join(report.markdown), "utf-8")


if __name__ == "__main__":
    main()
