"""Runs whose web searches go by a model provider."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ava_server.config.keys import set_key
from support.commands.doctor import doctor
from support.model_server import Fail, ModelServer, Say, Step, run_model_server
from support.models.search_formats import FORMATS

KEY = "sk-search-0123456789abcdef"
TASK = "Find out what podcast transcription costs."
LOOK = Say(calls=[("web_search", {"query": "podcast prices"})])
CHEAP = '[prices."custom:test"]\ninput = 0.01\noutput = 0.05\n'
"""A price of the run's own model that leaves small caps to the searches."""


def search_finding(root: Path, **env: str) -> tuple[str, str]:
    """Return what `ava doctor` says of the search: its state and its words."""
    finding = doctor(root, **env)["search"]
    return finding["state"], f"{finding['text']} {finding['what_to_do']}"


@contextmanager
def search_provider(*steps: Step, name: str = "anthropic", times: int = 1) -> Generator[ModelServer]:
    """A provider of the name that answers so, `times` over."""
    with run_model_server([*(steps or [Fail(200, FORMATS[name].answer)])] * times) as server:
        yield server


def search_config(server: ModelServer, name: str = "anthropic", *, more: str = CHEAP, engine: str | None = None) -> str:
    """Return the settings with which a provider searches."""
    return (
        f'{more}[search]\nengine = "{engine or name}"\n'
        f'[providers.{name}]\nbase_url = "http://127.0.0.1:{server.port}/v1"\n'
        f'[prices."{name}:{FORMATS[name].model}"]\ninput = 0.1\noutput = 0.5\n'
    )


def store_key(tmp_path: Path, name: str = "anthropic") -> Path:
    """Store a key of a provider, and return the file."""
    file = tmp_path / "data" / "keys.toml"
    file.parent.mkdir(mode=0o700, exist_ok=True)
    set_key(name, KEY, file)
    return file
