"""A lab whose tools read attacks, and what a model is shown of them."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ava_audit.events import RunStarted, ToolCall
from ava_server.config.keys import set_key
from ava_server.config.secrets import set_secret
from support.foreign.injections import Ground, Way
from support.model_server import Step, run_model_server
from support.network.web_site import site
from support.runtime import Lab, open_lab
from support.tool_examples import EXAMPLES

TOKEN = "token-of-a-secret-0123456789abcdef"
_SELECTORS = "\ufe00-\ufe0d\U000e0100-\U000e01ef"
_FILLERS = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0"
_UNSEEN = re.compile(f"[{_SELECTORS}{_FILLERS}]|(?<=[\ufe00-\ufe0f])[\ufe0e\ufe0f]")
_PLAIN = str.maketrans("∕⁄＜＞‹›⟨⟩❮❯〈〉〈〉«»˂﹤ооοеаѕрɡ01375", "//<><><><><><><><<oooeaspgolest")
_TAGS = re.compile(
    "<[^a-z<]{0,20}(?:"
    + "|".join("[^a-z<]{0,3}".join(name) for name in ("tooloutput", "subagentresult", "projectinstructions"))
    + ")"
)
WAYS: Mapping[str, tuple[str, Way]] = {
    f"{tool}, {label}".removesuffix(", "): (tool, way)
    for tool, example in EXAMPLES.items()
    for label, way in (example.brings.items() if not isinstance(example.brings, str) else ())
}
ROLE = """---
name: tester
description: Reads whatever it is told to.
tools: [TOOLS]
max_tool_calls: 150
max_tokens: 200000
secrets: [TOKEN]
---
Read.
"""


def count_unseen(text: str) -> int:
    """How many characters of a text nobody sees, by the database of Unicode; line ends are seen.

    A title or a link of a terminal has two of them, and counts as one.
    """
    text = re.sub("\x1b][^\x07\x1b\n]*(?:\x07|\x1b\\\\)", "\x1b", text.replace("\r\n", "\n").replace("\r", "\n"))
    hidden = sum(
        unicodedata.category(char) in ("Cc", "Cf", "Cs") and char not in "\n\t" and not "\u180b" <= char <= "\u180f"
        for char in text
    )
    return hidden + len(_UNSEEN.findall(text))


@asynccontextmanager
async def open_ground(tmp_path: Path, script: Any) -> AsyncGenerator[tuple[Ground, Lab]]:
    """A lab with a role that has every tool that reads, a site, a search engine, and a secret."""
    root = tmp_path / "data"
    (root / "roles").mkdir(mode=0o700, parents=True)
    (root / "roles" / "tester.md").write_text(ROLE.replace("TOOLS", ", ".join({tool for tool, _way in WAYS.values()})))
    set_secret("TOKEN", TOKEN, ["docs.example.com"], root / "secrets" / "secrets.toml")
    set_key("openrouter", "key-of-a-provider-0123456789", root / "keys.toml")
    hits: list[Step] = []
    async with site({}) as web:
        with run_model_server(hits) as engine:
            config = f'[search]\nengine = "searxng"\nsearxng = "http://127.0.0.1:{engine.port}"\n'
            config += '[sandbox]\nmode = "none"\n'  # what is tried is what commands print, on any machine
            async with open_lab(tmp_path, script, config=config) as lab:
                lab.runtime.fetcher = web.fetcher
                yield Ground(lab.workspace, web, hits), lab


async def read_with_role(lab: Lab, **more: Any) -> tuple[list[str], str, str]:
    """Run the role; return what the tools' messages hold in the last request, all else in it, and the nonce."""
    run_id = await lab.start(role="tester", task="Read what there is.", **more)
    assert (await lab.ended(run_id)).state == "success", await lab.result(run_id)
    (started,) = await lab.facts(run_id, RunStarted)
    messages: list[dict[str, Any]] = lab.server.requests[-1].json["messages"]
    calls = [call for each in messages for call in each.get("tool_calls", ())]
    made = [(fact.tool, fact.args) for fact in await lab.facts(run_id, ToolCall)]
    asked = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
    assert sorted(made, key=str) == sorted(asked, key=str), "no call was made that the model did not make"
    roles = [each["role"] for each in messages]
    assert roles[:2] == ["system", "user"] and set(roles[2:]) <= {"assistant", "tool"}, "no message is an attack's"
    shown = [str(each["content"]) for each in messages if each["role"] == "tool"]
    assert len(shown) == len(calls)
    others = "\n".join(str(each["content"]) for each in messages if each["role"] != "tool")
    assert started.nonce is not None
    return shown, others, started.nonce


def inside_of_result(shown: str, nonce: str) -> tuple[str, int]:
    """Return what stands between the tags of a result, and the count of what was removed; nothing is outside."""
    assert shown.count(f"tool_output_{nonce}") == 2, shown
    whole = re.fullmatch(
        rf'(?:Failed\.\n)?<tool_output_{nonce} tool="\w+"(?: invisible_characters_removed="(\d+)")?>\n(.*)\n'
        rf"</tool_output_{nonce}>"
        r"(?:\n\[cut at \d+ of \d+ characters; read_tool_result R-\w+ with offset \d+ goes on\])?",
        shown,
        re.DOTALL,
    )
    assert whole is not None, shown
    return whole[2], int(whole[1] or 0)


def assert_inert(body: str) -> None:
    """Nothing in a text can be taken for a tag of ours, and nothing is hidden in it."""
    assert count_unseen(body) == 0, ascii(body)
    folded = unicodedata.normalize("NFKD", body.translate(_PLAIN)).casefold().translate(_PLAIN)
    letters = "".join(char for char in folded if not unicodedata.combining(char)).replace("i", "l")
    assert not (tags := _TAGS.findall(letters)), (tags, body)
