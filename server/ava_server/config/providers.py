"""The providers of models and searches that are known by name: where each is asked, and the variable of its key.

Every list of known providers is made from this one: addresses, variables of keys, what hosts are told to hand on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """What is known of a provider by its name.

    Attributes:
        variable: Where people usually have its key.
        base_url: Where its models, or its searches, are asked.
        models: It has models, and not a web search.
    """

    variable: str
    base_url: str
    models: bool = True


PROVIDERS: Mapping[str, Known] = {
    "openrouter": Known("OPENROUTER_API_KEY", "https://openrouter.ai/api/v1"),
    "anthropic": Known("ANTHROPIC_API_KEY", "https://api.anthropic.com/v1"),
    "openai": Known("OPENAI_API_KEY", "https://api.openai.com/v1"),
    "groq": Known("GROQ_API_KEY", "https://api.groq.com/openai/v1"),
    "kagi": Known("KAGI_API_KEY", "https://kagi.com/api/v1", models=False),
    "brave": Known("BRAVE_API_KEY", "https://api.search.brave.com/res/v1", models=False),
}
"""In the order of preference where several have a key."""
