"""Settings of model providers, as a person writes them."""

from __future__ import annotations

from pathlib import Path

from ava_server.config.credentials import model_settings
from ava_server.config.settings import load_settings
from ava_server.models.model_choice import ModelSettings

KEY = "k3y-0f-n0b0dy-123456"


def settings_with(root: Path, config: str) -> ModelSettings:
    """Return the model settings of a data root with this configuration."""
    (root / "config.toml").write_text(config)
    return model_settings(load_settings(root, env={}), {})
