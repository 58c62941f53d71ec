"""Seconds from the start of a server in an empty home to the end of the first approved run, in an unknown host.

    python benchmarks/first_run.py [--rounds 5] [--json F]

The host's model proposes. Its person has no PIN yet, chooses one and approves: on the page of the proposal's link, as a
browser sends its form, or with `ava approve` in a terminal. The run ends when the subagent's model has answered once,
which takes no time here. What a person reads and types takes none either. Goal: 30 s.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from figures import Figure, write_json
from startup import FIRST, SERVERS, Server

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.model_server import run_model_server
from support.pages.browser import PIN, Visitor, finish_at_once
from support.processes import end_started_pages
from support.stdio import model_env
from support.terminal import CONTROLLED, run_on_terminal

GOAL_S = 30.0
SPAWN = {"role": "custom", "system_prompt": "Look.", "task": "What does it cost?", "max_cost_cents": 20}
_LINK = re.compile(r"(http://[^/\s]+)(/enter\?code=\S+)")


def by_link(_root: Path, proposed: dict[str, Any]) -> None:
    """Follow the link, choose a PIN on its page and approve."""
    found = _LINK.search(proposed["next"])
    assert found is not None, proposed["next"]
    with httpx2.Client(base_url=found[1], timeout=20, trust_env=False) as http:
        visitor = Visitor(found[1], http)
        assert visitor.get(found[2]).status_code == 303, visitor.shown
        answer = visitor.decide(proposed["pending_id"], "approve", new_pin=PIN, new_pin_again=PIN)
        assert answer.status_code == 303, answer.text


def in_a_terminal(root: Path, proposed: dict[str, Any]) -> None:
    """Run `ava approve` and choose a PIN there."""
    with run_on_terminal(root, "approve", proposed["pending_id"], command=CONTROLLED) as screen:
        chosen = [("[y/N]", "y"), ("New approval PIN (not shown)", PIN), ("once more", PIN)]
        assert screen.ended_after(chosen) == 0, screen.text


WAYS: dict[str, Callable[[Path, dict[str, Any]], None]] = {"by the link": by_link, "in a terminal": in_a_terminal}


def first_run(approve: Callable[[Path, dict[str, Any]], None]) -> dict[str, float]:
    """Seconds of each step, from the start of the server's process."""
    with empty_home() as root:
        began = time.perf_counter()
        server = Server(SERVERS["ava serve"], root)
        try:
            server.ask("initialize", FIRST["initialize"])
            server.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
            proposed = call(server, "spawn_subagent", **SPAWN)
            assert proposed["status"] == "awaiting_approval", proposed
            shown_s = time.perf_counter() - began
            approve(root, proposed)
            approved_s = time.perf_counter() - began
            checked = call(server, "check_subagent", subagent_id=proposed["subagent_id"], wait_seconds=40)
            assert checked["status"] == "success", checked
            return {"proposed": shown_s, "approved": approved_s, "ended": time.perf_counter() - began}
        finally:
            server.end()
            end_started_pages(root)


def call(server: Server, tool: str, **arguments: Any) -> dict[str, Any]:
    answer: dict[str, Any] = server.ask("tools/call", {"name": tool, "arguments": arguments})["structuredContent"]
    return answer


@contextmanager
def empty_home() -> Generator[Path]:
    """Make a home with nothing in it and a model to use; yield where the data root will be."""
    with tempfile.TemporaryDirectory() as home, run_model_server(finish_at_once) as models:
        env = {**model_env(models.base_url), "HOME": home, "AVA_DATA_ROOT": f"{home}/data", "AVA_BACKGROUND": "false"}
        before = dict(os.environ)
        os.environ.update(env)
        try:
            yield Path(home) / "data"
        finally:
            os.environ.clear()
            os.environ.update(before)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--rounds", type=int, default=5, help="how often each way is gone")
    options.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = options.parse_args()
    figures: list[Figure] = []
    for name, approve in WAYS.items():
        rounds = [first_run(approve) for _round in range(chosen.rounds)]
        steps = {step: statistics.median(each[step] for each in rounds) for step in rounds[0]}
        worst = max(each["ended"] for each in rounds)
        print(f"{name}: " + ", ".join(f"{step} after {at:.2f} s" for step, at in steps.items()), f"(worst {worst:.2f})")
        figures.append(Figure(f"first approved run, {name}", steps["ended"], "s", GOAL_S))
    if chosen.json is not None:
        write_json(chosen.json, figures)


if __name__ == "__main__":
    main()
