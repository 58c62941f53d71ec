"""No character of a model, a page or a task steers a terminal: each screen that shows such text, on a real one."""

import re
from pathlib import Path

import pytest
from support.model_server import Fail, Say, run_model_server
from support.runtime import open_lab
from support.terminal import Screen, ava, run_on_terminal

from ava_server.core.data_root import os_user

pytestmark = pytest.mark.slow

CSI, OSC_8, OSC_52 = (
    "\x1b[6;5mEVIL\x1b[2J",
    "\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\",
    "\x1b]52;c;RVZJTA==\x07",
)
C1, BIDI, BACK = "\x9b6;5m\x9d0;EVIL\x9c\x90q\x9c", "\u202eLIVE\u2066\u2069\u200b", "safe\x08\x08\x08\x08EVIL\r\x7f"
EVIL = f"word {CSI} {OSC_8} {OSC_52} {C1} {BIDI} {BACK} \x1bc\x0e\U000e0041 end"
_NEVER = re.compile(r"\x1b[\]cPX^_()N\\]|\x1b\[6;5m|[\x00-\x07\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e"
                    r"\u2066-\u2069\u200b-\u200f\U000e0000-\U000e007f]")  # fmt: skip
"""What Ava's own screens never need: they colour, and clear lines."""
_OURS = re.compile(r"\x1b\[\?(?:25|2004|1049)[hl]")

SCREENS = (
    ("show", "RUN"), ("show", "RUN", "--json"), ("show", "RUN", "--cost"), ("logs",), ("logs", "RUN"),
    ("logs", "RUN", "--json"), ("logs", "--type", "error"), ("report", "--all"), ("report", "--all", "--json"),
    ("wait", "RUN"), ("wait", "RUN", "--json"), ("status", "--once", "--all"), ("status", "--all", "--json"),
    ("memory",), ("memory", "show", "bad"), ("memory", "search", "word"), ("roles",), ("roles", "show", "evil"),
    ("roles", "check"), ("show", "BROKEN"), ("logs", "BROKEN"),
)  # fmt: skip


async def test_model_text_cannot_control_the_terminal_on_any_screen(tmp_path: Path) -> None:
    ids = await hostile(tmp_path)
    root = tmp_path / "data"
    seen = ""
    for screen in SCREENS:
        args = tuple(ids.get(arg, arg) for arg in screen)
        with run_on_terminal(root, *args, columns=80) as shown:
            shown.ended()
        harmless(shown.text, (screen, "on a terminal"))
        piped = ava(root, *args)
        harmless(piped.stderr, (screen, "stderr"))
        if "--json" not in screen:
            harmless(piped.stdout, (screen, "piped"))
        seen += shown.text
    assert seen.count("EVIL") > 20, "the screens did show what the model had said"


@pytest.mark.parametrize("plain", [False, True])
async def test_proposal_question_and_result_do_not_control_the_terminal(tmp_path: Path, plain: bool) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "evil.md").write_text(EVIL)
    with run_model_server(answers()) as server:
        env = {"AVA_MODEL_BASE_URL": server.base_url, "AVA_MODEL": "test"}
        if plain:
            args = ("run", "researcher", EVIL, "--workspace", str(work), "--yes", "--max-cost", "0.10")
            done = ava(tmp_path / "data", *args, env=env)
            harmless(done.stdout + done.stderr, "run")
            assert done.returncode == 0 and "EVIL" in done.stdout
            return
        with run_on_terminal(
            tmp_path / "data", "run", "researcher", EVIL, "--context", EVIL, "--workspace", str(work), env=env
        ) as screen:
            asked(screen)
            assert screen.ended() == 0
    harmless(screen.text, "run on a terminal")
    assert screen.text.count("EVIL") > 3


def asked(screen: Screen) -> None:
    screen.until("[y/N]")
    screen.type("y\n")


async def test_a_waiting_proposal_does_not_control_the_terminal(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], runs=False, check=False) as lab:
        await lab.propose(task=EVIL, context=EVIL, rationale=EVIL, role="custom", system_prompt=EVIL)
        assert lab.runtime.user == os_user()
        with run_on_terminal(lab.root, "approve") as screen:
            screen.until("Start it?")
            screen.type("r\n")
            screen.ended()
        harmless(screen.text, "approve")
        assert "EVIL" in screen.text
        for number in range(2):
            await lab.propose(task=f"{EVIL} {number}", context=EVIL, name="EVIL", role="custom", system_prompt=EVIL)
        with run_on_terminal(lab.root, "approve", env={"NO_COLOR": "1"}) as several:
            several.until("Start them?")
            several.type("m\n")
            several.until_asked("Start them?")
            several.type("r\n")
            several.ended()
    harmless(several.text, "approve several")
    assert several.text.count("EVIL") > 3


def harmless(text: str, what: object) -> None:
    found = _NEVER.search(_OURS.sub("", text))
    assert found is None, f"{what}: {text[max(0, found.start() - 80) : found.end() + 80]!r}"


def answers() -> list[Say]:
    """A model that puts escapes wherever a model can put something."""
    findings = [{"claim": EVIL, "source_url": "https://example.com/\x1b[6;5m", "source_name": EVIL, "quote": EVIL}]
    submitted = {"summary": EVIL, "output": {EVIL: EVIL}, "findings": findings, "caveats": [EVIL], "confidence": 0.5}
    return [
        Say(EVIL, [("read_file", {"path": f"notes{EVIL}.md"})], reasoning=EVIL),
        Say(EVIL, [("read_file", {"path": "evil.md"}), (f"no_{CSI}", {"x": EVIL})]),
        Say(EVIL, [("save_artifact", {"name": f"a{CSI}.txt", "content": EVIL})]),
        Say("", [("submit_result", submitted)]),
    ]


async def hostile(tmp_path: Path) -> dict[str, str]:
    """Let two runs fill a log: one ends well, one with an error of the provider. Return their ids."""
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "evil.md").write_text(EVIL)
    async with open_lab(tmp_path, answers(), check=False) as lab:
        run = await lab.start(task=EVIL, context=EVIL, rationale=EVIL, name="plain", role="researcher")
        await lab.ended(run)
    with run_model_server([Fail(400, {"error": {"message": EVIL, "type": EVIL, "code": EVIL}})]) as server:
        async with open_lab(tmp_path, server=server, check=False) as lab:
            broken = await lab.start(task=EVIL, role="researcher")
            await lab.ended(broken)
    root = tmp_path / "data"
    (root / "memory").mkdir(mode=0o700, exist_ok=True)
    (root / "memory" / "bad.md").write_text(EVIL)
    (root / "roles").mkdir(mode=0o700, exist_ok=True)
    (root / "roles" / "evil.md").write_text(f"---\nname: evil\ndescription: {CSI}\ntools: [read_file]\n---\n{EVIL}\n")
    quoted = 'description: "\\e[6;5m \\x9b \\u202e \\b"'
    (root / "roles" / "worse.md").write_text(f"---\nname: worse\n{quoted}\ntools: [read_file]\n---\n{EVIL}\n")
    return {"RUN": run, "BROKEN": broken}
