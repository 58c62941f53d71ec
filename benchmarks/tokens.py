"""Tokens that Ava adds to the context of a host's model: its instructions and its six tools.

    npm install --prefix FOLDER gpt-tokenizer @anthropic-ai/tokenizer llama3-tokenizer-js llama-tokenizer-js \\
        mistral-tokenizer-js
    python benchmarks/tokens.py --packages FOLDER [--json FILE]

Counted are the instructions and, as compact JSON, `name`, `description` and `inputSchema` of each tool, with the
built-in roles and no search set up. Few hosts show a model more; the second figure is with titles, hints and output
schemas too, and has no goal. Shown beside it: what a host shows that has Ava's skill, and the six names with empty
schemas. Goal: at most 1,800 tokens with each tokenizer.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from figures import Figure, write_json
from gen_docs import listed_tools

from ava_server.render.host_text import INSTRUCTIONS, INSTRUCTIONS_WITH_SKILL

GOAL = 1_800
COUNT = """
import {createRequire} from 'node:module'; import {readFileSync} from 'node:fs'; import {pathToFileURL} from 'node:url';
const require = createRequire(process.cwd() + '/'), texts = JSON.parse(readFileSync(0)), found = {};
const load = async (name, make) => {
  try {
    const count = make((await import(pathToFileURL(require.resolve(name)).href)));
    found[count.label] = texts.map(count);
  }
  catch (error) { console.error(name + ' is left out: ' + error.code) }
};
const named = (label, count) => { Object.defineProperty(count, 'label', {value: label}); return count };
for (const name of ['o200k', 'cl100k', 'p50k'])
  await load(`gpt-tokenizer/encoding/${name}_base`, m => named(name, t => (m.encode ?? m.default.encode)(t).length));
await load('@anthropic-ai/tokenizer', m => named('Claude 2', t => (m.countTokens ?? m.default.countTokens)(t)));
await load('llama3-tokenizer-js', m => named('Llama 3', t => m.default.encode(t, {bos: false, eos: false}).length));
await load('llama-tokenizer-js', m => named('Llama 2', t => m.default.encode(t, false).length));
await load('mistral-tokenizer-js', m => named('Mistral 1', t => m.default.encode(t, false).length));
console.log(JSON.stringify(found));
"""


def shown() -> dict[str, list[str]]:
    """The texts of the floor, of what hosts show without and with Ava's skill, and of everything that is declared."""
    tools = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed_tools()]
    parts = {
        "floor": [{"name": tool["name"], "inputSchema": {"type": "object"}} for tool in tools],
        "shown": [{key: tool[key] for key in ("name", "description", "inputSchema")} for tool in tools],
        "declared": tools,
    }
    packed = {
        what: [json.dumps(tool, ensure_ascii=False, separators=(",", ":")) for tool in given]
        for what, given in parts.items()
    }
    return {
        "floor": packed["floor"],
        "shown": [INSTRUCTIONS, *packed["shown"]],
        "with skill": [INSTRUCTIONS_WITH_SKILL, *packed["shown"]],
        "declared": [INSTRUCTIONS, *packed["declared"]],
    }


def count(texts: list[str], packages: Path) -> dict[str, list[int]]:
    """The tokens of each text, by tokenizer."""
    node = shutil.which("node")
    if node is None:
        raise SystemExit("the tokenizers need node")
    words = [node, "--input-type=module", "-e", COUNT]
    done = subprocess.run(words, input=json.dumps(texts), stdout=subprocess.PIPE, text=True, cwd=packages, check=True)
    found: dict[str, list[int]] = json.loads(done.stdout)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--packages", type=Path, required=True)
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    texts = shown()
    sums: dict[str, dict[str, int]] = {}
    for what, given in texts.items():
        for name, counted in count(given, chosen.packages).items():
            sums.setdefault(name, {})[what] = sum(counted)
    print(f"{sum(len(text.encode()) for text in texts['shown']):,} bytes shown")
    figures: list[Figure] = []
    for name, by in sums.items():
        figures.append(Figure(f"instructions and tools, {name}", by["shown"], "tokens", GOAL))
        verdict = "reached" if figures[-1].reached else "MISSED"
        print(
            f"{name:<10} shown {by['shown']:>6,}   with the skill {by['with skill']:>6,}"
            f"   all that is declared {by['declared']:>6,}   bare {by['floor']:>4,}   goal {GOAL:,}: {verdict}"
        )
    if chosen.json:
        write_json(chosen.json, figures)


if __name__ == "__main__":
    main()
