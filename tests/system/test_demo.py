"""`ava demo`, as a first user meets it: a child server, a real MCP client, real files."""

import os
import random
import re
import string
from collections.abc import Callable
from pathlib import Path

import pytest
from support.terminal import ava, run_on_terminal

from ava_server.cli.demo import question_about, worth_reading

pytestmark = pytest.mark.slow

QUOTE = re.compile(r'^│ \d\. (.+?) \(✓ quote found word for word\): "(.*)"$', re.MULTILINE)
STYLES = re.compile(r"\x1b\[[\d;]*m")


@pytest.fixture
def words() -> list[str]:
    """Words that stand nowhere else in the world."""
    chance = random.Random()
    return ["".join(chance.choices(string.ascii_lowercase, k=9)) for _ in range(240)]


@pytest.fixture
def folder(tmp_path: Path, words: list[str]) -> Path:
    """A folder of random words, in sentences."""
    folder = tmp_path / "random"
    (folder / "deeper").mkdir(parents=True)
    for number in range(6):
        taken = words[number * 40 : number * 40 + 40]
        sentences = [" ".join(taken[at : at + 8]).capitalize() + "." for at in range(0, 40, 8)]
        place = folder / "deeper" if number % 2 else folder
        (place / f"file{number}.txt").write_text("\n\n".join(sentences) + "\n")
    return folder


def quotes_of(screen: str) -> list[str]:
    return [quote for _source, quote in QUOTE.findall(screen)]


def text_in(folder: Path) -> str:
    return " ".join(" ".join(path.read_text().split()) for path in sorted(folder.rglob("*.txt")))


@pytest.mark.parametrize("option", [(), ("--scripted",)])
def test_quotes_come_from_the_given_folder(
    tmp_path: Path, folder: Path, words: list[str], option: tuple[str, ...]
) -> None:
    done = ava(tmp_path / "unused", "demo", str(folder), *option)

    assert done.returncode == 0, done.stderr
    asked = re.search(r"What do these files say about (\w+), (\w+) and (\w+)\?", done.stdout)
    assert asked is not None
    assert set(asked.groups()) <= set(words)
    quotes = quotes_of(done.stdout)
    assert quotes, "one of each file that has a word, and all three may be in one"
    for quote in quotes:
        assert quote.removesuffix("…") in text_in(folder)
        assert any(word in quote.lower() for word in asked.groups())
    assert "NOT found" not in done.stdout
    assert done.stdout.count("✓ quote found word for word") == len(quotes)
    assert all(re.fullmatch(r".*file\d\.txt:\d+", source.split(", ")[-1]) for source, _ in QUOTE.findall(done.stdout))
    assert not (tmp_path / "unused").exists(), "the demo leaves the user's own data root alone"


def test_reads_the_shipped_documentation_within_ten_seconds_without_a_folder(tmp_path: Path) -> None:
    before = os.times()
    done = ava(tmp_path, "demo", env={"TMPDIR": str(tmp_path)})
    after = os.times()

    assert done.returncode == 0, done.stderr
    assert after.children_user + after.children_system - before.children_user - before.children_system < 10
    lines = done.stdout.splitlines()
    assert "There is no terminal to ask on, so the demo approves it by itself." in lines
    assert any(re.fullmatch(r'researcher "demo" \(S-\w{6}\): success · .* · free', line) for line in lines)
    assert quotes_of(done.stdout)
    assert done.stderr == ""
    order = [
        "-- Proposed (spawn_subagent)",
        "-- Running in the background: the host had its answer after ",
        "-- Result",
        "In the log",
        "removed",
        "-- Next --",
    ]
    places = [done.stdout.index(part) for part in order]
    assert places == sorted(places)


def test_the_answer_is_worth_reading_and_the_end_says_what_to_do_next(tmp_path: Path) -> None:
    done = ava(tmp_path, "demo", env={"TMPDIR": str(tmp_path)})
    assert worth_reading(quotes_of(done.stdout)[0]) > 0.5, "the best passage is prose that answers the question"
    assert "✓ quote found word for word" in done.stdout
    steps = done.stdout.partition("-- Next --\n")[2].splitlines()
    assert [step.partition(":")[0] for step in steps] == [
        "In your assistant",
        "With a model",
    ]
    assert " init claude-code" in steps[0] and steps[1].endswith(" key set openrouter")
    assert "AVA_DATA_ROOT" not in done.stdout, "a key in the demo's data root would help nobody"


def test_asks_about_a_heading_that_prose_answers(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    answer = (
        "Mira pays the rent on the 3rd of each month. The landlord wants it in one transfer, with the flat's number."
    )
    (folder / "flat.md").write_text(
        f"# Overview\n\nx\n\n## Codes\n\n| a | b |\n|---|---|\n| rent | 1 |\n\n## Paying the rent\n\n{answer}\n"
    )
    (folder / "todo.md").write_text("# Shopping list\n\n- milk\n- bread\n- rent a van\n")
    done = ava(tmp_path / "unused", "demo", str(folder))
    assert '"What should I know about paying the rent?"' in done.stdout
    assert quotes_of(done.stdout)[0] == answer


@pytest.mark.parametrize(
    ("heading", "question"),
    [
        ("How do I return it?", "How do I return it?"),
        ("How to return a parcel", "How do I return a parcel?"),
        ("Otter Pay", "What should I know about Otter Pay?"),
        ("Table of contents", None),
        ("What it is", None),
    ],
)
def test_a_heading_becomes_a_question_of_a_person(tmp_path: Path, heading: str, question: str | None) -> None:
    text = "You return the parcel within 14 days, and it has to be whole. Otter Pay sends a label; print it."
    (tmp_path / "a.md").write_text(f"# {heading}\n\n{text}\n")
    assert (question_about(tmp_path) == question) == (question is not None)
    assert question_about(tmp_path).endswith("?")


def test_ignores_a_key_in_the_environment(tmp_path: Path, folder: Path) -> None:
    dead = {
        "OPENROUTER_API_KEY": "sk-or-v1-" + "0" * 64,
        "AVA_MODEL_BASE_URL": "http://127.0.0.1:9/v1",
        "AVA_MODEL": "x",
    }
    done = ava(tmp_path, "demo", str(folder), env=dead)
    assert done.returncode == 0, done.stderr
    assert "The demo always uses the offline reader, even if you have keys" in done.stdout


def test_yes_in_a_terminal_starts_the_demo(tmp_path: Path, folder: Path) -> None:
    with run_on_terminal(tmp_path, "demo", str(folder)) as screen:
        shown = STYLES.sub("", screen.until("Start it? [y/N] (more: m)"))
        price, reach = shown.partition(" asks: --\n")[2].split("\n")[:2]
        assert price == "Free, 10 min" and reach.startswith("It can read ")
        assert "At most 20 turns" not in shown and "-- Running" not in shown
        screen.type("m\n")
        assert "At most 20 turns" in screen.until_asked("Start it? [y/N]")
        screen.type("y\n")
        assert screen.ended() == 0
    drawn = STYLES.sub("", screen.text).partition("-- Result --")[2]
    assert re.search(r"^│ 1\. .+? \(✓ quote found word for word\): ", " ".join(drawn.split("\n│    ")), re.MULTILINE)


@pytest.mark.parametrize("answer", ["n\n", "\n", "\x04"])
def test_anything_but_yes_in_a_terminal_starts_nothing(tmp_path: Path, folder: Path, answer: str) -> None:
    with run_on_terminal(tmp_path, "demo", str(folder)) as screen:
        screen.until("Start it? [y/N] (more: m)")
        screen.type(answer)
        assert screen.ended() == 10
    assert "Rejected; nothing was started." in screen.text
    assert "-- Running" not in screen.text


def test_ctrl_c_at_the_question_ends_quietly_and_leaves_no_folder(tmp_path: Path, folder: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with run_on_terminal(tmp_path, "demo", str(folder), env={"TMPDIR": str(temporary)}) as screen:
        screen.until("Start it? [y/N] (more: m)")
        screen.interrupt()
        assert screen.ended() == 130
    assert "Traceback" not in screen.text
    assert "Stopped; nothing was started.\nThe demo's data root is removed" in screen.text
    assert list(temporary.iterdir()) == []


def test_ctrl_c_after_the_start_says_what_happened_to_the_run(tmp_path: Path, folder: Path) -> None:
    with run_on_terminal(tmp_path, "demo", str(folder)) as screen:
        screen.until("Start it? [y/N] (more: m)")
        screen.type("y\n")
        screen.until("-- Running")
        screen.interrupt()
        assert screen.ended() == 130
    assert re.search(r"\nStopped; S-\w{6} had been started, and ended with it\.\n", screen.text)
    assert "Traceback" not in screen.text


@pytest.mark.parametrize("columns", [80, 120])
def test_breaks_no_word_at_the_edge_of_the_terminal(tmp_path: Path, folder: Path, columns: int) -> None:
    with run_on_terminal(tmp_path, "demo", str(folder), columns=columns) as screen:
        screen.until("Start it? [y/N] (more: m)")
        screen.type("y\n")
        assert screen.ended() == 0
    for line in screen.text.splitlines():
        shown = STYLES.sub("", line).rpartition("\x1b[K")[2].strip()
        assert len(shown) <= columns or " " not in shown


@pytest.mark.parametrize("columns", [80, 100])
def test_fits_on_one_screen_with_the_best_passage_first_and_only_passages_that_answer(
    tmp_path: Path, columns: int
) -> None:
    with run_on_terminal(tmp_path, "demo", columns=columns, env={"TMPDIR": "/tmp"}) as screen:
        screen.until("Start it? [y/N] (more: m)")
        screen.type("y\n")
        assert screen.ended() == 0
    shown = STYLES.sub("", screen.text).rstrip("\n").split("\n")
    lines = [line.rpartition("\x1b[K")[2].rstrip() for line in shown]
    assert len(lines) <= 24 and max(map(len, lines)) <= columns
    result = re.sub(r"\n│ {2,}", " ", "\n".join(lines[lines.index("-- Result --") :]))
    summary = result.split("\n")[1]
    assert re.fullmatch(r"│ \d passages in \d sources with words of the task \(.+\), .+\.( The best:)?", summary)
    best, *others = quotes_of(result)
    assert "continues when you close the host" in best
    assert all("continue" in quote and "close" in quote for quote in others)


@pytest.mark.parametrize(
    ("option", "says"),
    [((), "│ No answer found: none of the searched text has zebras, sleep."), (("--scripted",), "is in no file.")],
)
def test_a_question_without_an_answer_ends_as_such(tmp_path: Path, option: tuple[str, ...], says: str) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("The lamp is lit by the keeper every evening at dusk.\n")
    done = ava(tmp_path / "unused", "demo", str(tmp_path / "notes"), "--task", "Where do zebras sleep?", *option)
    assert done.returncode == 17
    assert says in done.stdout
    assert ": no answer · " in done.stdout and quotes_of(done.stdout) == []


def test_removes_the_data_root_unless_asked_to_keep_it(tmp_path: Path, folder: Path) -> None:
    gone = ava(tmp_path, "demo", str(folder), env={"TMPDIR": str(tmp_path)})
    kept = ava(tmp_path, "demo", str(folder), "--keep", env={"TMPDIR": str(tmp_path)})

    assert "The demo's data root is removed; --keep keeps it." in gone.stdout
    assert "The log: " not in gone.stdout
    assert "As JSON lines" not in gone.stdout
    [named_root] = re.findall(r"^Kept: AVA_DATA_ROOT=(\S+) ava logs$", kept.stdout, re.MULTILINE)
    root = Path(named_root)
    assert [place.name for place in tmp_path.glob("ava-demo-*")] == [root.parent.name]
    logs = ava(root, "logs", "--type", "complete")
    assert "SubagentComplete" in logs.stdout
    named = [line for line in kept.stdout.splitlines() if line.startswith(("The log: ", "As JSON lines: ", " " * 15))]
    assert len(named) == 3
    for line in named:
        assert Path(line.rpartition(" ")[2]).is_file()


def test_asks_a_custom_task(tmp_path: Path, folder: Path, words: list[str]) -> None:
    done = ava(tmp_path, "demo", str(folder), "--task", f"Where does {words[7]} stand?")
    assert f'"Where does {words[7]} stand?"' in done.stdout
    assert words[7] in quotes_of(done.stdout)[0].lower()


def test_control_characters_of_a_file_do_not_reach_the_screen(tmp_path: Path, folder: Path, words: list[str]) -> None:
    (folder / "evil.txt").write_text(
        f"# {words[0]} {words[0]}\n\x1b]0;owned\x07 {words[0]} \x1b[31mred \u202e text\x9b2J\n"
    )
    with run_on_terminal(tmp_path, "demo", str(folder), "--task", f"{words[0]}") as screen:
        screen.until("Start it?")
        screen.type("y\n")
        assert screen.ended() == 0
    assert "evil.txt" in screen.text
    for steering in ("\x1b]", "\x07", "\x1b[31m", "\u202e", "\x9b"):
        assert steering not in screen.text


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


UNREADABLE: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: None, "does not exist"),
    (lambda path: path.write_text("text"), "is not a folder"),
    (lambda path: path.symlink_to("/"), "is the whole file system, which is never read"),
    (lambda path: path.mkdir(), "there is no text to read"),
    (lambda path: made(path).joinpath("x.bin").write_bytes(b"\0" * 99), "there is no text to read"),
    (lambda path: path.symlink_to(path.parent / "nowhere"), "does not exist"),
]


@pytest.mark.parametrize(("make", "says"), UNREADABLE)
def test_reports_an_unreadable_folder_in_one_sentence(
    tmp_path: Path, make: Callable[[Path], object], says: str
) -> None:
    path = tmp_path / "given"
    make(path)
    done = ava(tmp_path / "root", "demo", str(path))

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert says in done.stderr
    assert str(path) in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_reports_a_folder_without_permission_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "closed"
    path.mkdir(mode=0o000)
    done = ava(tmp_path / "root", "demo", str(path))
    path.chmod(0o700)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_refuses_a_folder_that_subagents_may_not_read_and_says_why(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "text.txt").write_text("Something to read here.\n")
    done = ava(tmp_path / "root", "demo", str(home), env={"HOME": str(home)})
    assert done.returncode == 2
    assert "a home folder itself is never read; name one inside" in done.stderr
    assert done.stdout == "", "nothing is started first"
    assert "Traceback" not in done.stderr
