"""The digest of what a person approves: it covers the configuration and the brief, and no estimate."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ava_server.core.ids import IN_PROCESS
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import RunConfig

_ESTIMATES = {
    "estimated_minutes",
    "input_bytes",
    "estimate",
    "least_micros",
    "leaves",
    "start_micros",
    "turn_micros",
    "first_micros",
}
_OF_PLANS = {"step", "steps"}
"""Texts that only plans have."""


def digest(config: RunConfig, brief: Brief) -> str:
    """Return the hash of what is approved: configuration and texts, but no estimate, which depends on other runs."""
    both = {"config": _covered(config), "texts": _covered_brief(brief)}
    line = json.dumps(both, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(line.encode()).hexdigest()


def _covered(config: RunConfig) -> dict[str, Any]:
    """Return what a digest covers of a configuration.

    A newer field is left out while it has the value that older configurations stand for: their digests stay the same.
    """
    newer: tuple[tuple[str, Any], ...] = (
        ("runner", IN_PROCESS),
        ("agent", None),
        ("keyed", False),
        ("key_command", ()),
        ("steps", ()),
        ("skills", ()),
        ("missing_skills", ()),
        ("project_files", ()),
        ("project_origin", ""),
        ("project_left_out", ()),
        ("steps_files", ()),
        ("goes_on_from", ""),
    )
    unchanged = {name for name, older_value in newer if getattr(config, name) == older_value}
    covered = config.model_dump(mode="json", exclude=_ESTIMATES | unchanged)
    if not covered["price"]["surcharges"]:
        del covered["price"]["surcharges"]
    for use in covered["foreign"].values():
        for tool in use["tools"].values():
            for newer_field in ("destroys", "idempotent"):
                if not tool[newer_field]:
                    del tool[newer_field]
    if config.search_call is not None and not config.search_call.key_command:
        del covered["search_call"]["key_command"]
    if config.steps:
        steps: list[dict[str, Any]] = []
        for step in config.steps:
            fields = step.model_dump(mode="json", exclude={"config"} if step.again_why else {"config", "again_why"})
            steps.append({**fields, "config": _covered(step.config)})
        covered["steps"] = steps
    return covered


def _covered_brief(brief: Brief) -> dict[str, Any]:
    covered = brief.model_dump(mode="json", exclude=None if brief.steps else _OF_PLANS)
    for each in (covered, *covered.get("steps", ())):
        if not each["project"]:  # digests of older texts have no such field
            del each["project"]
    return covered
