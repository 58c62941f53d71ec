"""The approval PIN's file: five tries however they come, nothing that shows it, and closed where it cannot be read."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from support.runtime import open_lab, settings_of
from support.sample import sample

from ava_server.budget.user_limits import policy_in_force
from ava_server.config import pin as pin_module
from ava_server.config.pin import LOCKED_S, TRIES, TRIES_AN_HOUR, PinFile
from ava_server.core.errors import BadInput, ConfigError, Refused

RIGHT, WRONG = "73-otter-91", "73-otter-92"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "secrets" / "approval.toml"


@pytest.fixture
def file(path: Path) -> PinFile:
    """A PIN that is set."""
    path.parent.parent.mkdir(mode=0o700)
    file = PinFile(path)
    file.set(RIGHT)
    return file


def entry(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(path.read_text())["pin"]
    return found


def write_entry(path: Path, **fields: Any) -> None:
    path.write_text(tomlkit.dumps({"pin": {**entry(path), **fields}}))


# -- set, check, change, remove ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_accepts_the_stored_pin_and_no_other(file: PinFile, path: Path) -> None:
    assert file.is_set
    file.check(RIGHT)
    for wrong in (WRONG, RIGHT.upper(), RIGHT + "x", RIGHT[:-1], "", f" {RIGHT}"):
        with pytest.raises(Refused, match="That is not the PIN; 4 tries are left"):
            file.check(wrong)
        file.check(RIGHT)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_replacing_a_pin_requires_the_old_one(file: PinFile) -> None:
    with pytest.raises(Refused, match="There is a PIN already"):
        file.set("another-pin")
    with pytest.raises(Refused, match="not the PIN"):
        file.change(WRONG, "another-pin")
    file.check(RIGHT)
    file.change(RIGHT, "another-pin")
    assert answer(file, RIGHT) != "taken"
    assert answer(file, "another-pin") == "taken"


def test_removing_requires_the_pin_and_allows_a_new_one(file: PinFile) -> None:
    with pytest.raises(Refused, match="not the PIN"):
        file.remove(WRONG)
    assert file.is_set
    file.remove(RIGHT)
    assert not file.is_set
    with pytest.raises(Refused, match="no approval PIN yet"):
        file.check(RIGHT)
    file.set("another-pin")
    file.check("another-pin")


@pytest.mark.parametrize("how", [lambda file: file.check(RIGHT), lambda file: file.remove(RIGHT)])
def test_says_how_to_set_a_pin_if_there_is_none(path: Path, how: Callable[[PinFile], None]) -> None:
    with pytest.raises(Refused, match=r"no approval PIN yet, .*\. Set one with `ava pin set`\."):
        how(PinFile(path))
    assert not path.parent.exists(), "looking makes nothing"


def test_the_same_pin_has_another_hash_each_time(tmp_path: Path) -> None:
    hashes: set[str] = set()
    for name in ("a", "b"):
        file = PinFile(tmp_path / name / "approval.toml")
        file.set(RIGHT)
        hashes |= {entry(file.path)["hash"], entry(file.path)["salt"]}
    assert len(hashes) == 4


# -- five tries --------------------------------------------------------------------------------------------------------


def test_five_wrong_tries_lock_out_even_the_right_pin(file: PinFile) -> None:
    told = [answer(file, WRONG) for _ in range(TRIES)]
    assert told == [
        "That is not the PIN; 4 tries are left.",
        "That is not the PIN; 3 tries are left.",
        "That is not the PIN; 2 tries are left.",
        "That is not the PIN; 1 try is left.",
        "That is not the PIN; it is now locked for 15 minutes.",
    ]
    locked = "The PIN is locked for 15 more min, after 5 wrong tries."
    assert answer(file, RIGHT) == locked
    with pytest.raises(Refused, match="locked for 15 more min"):
        file.remove(RIGHT)
    with pytest.raises(Refused, match="locked for 15 more min"):
        file.change(RIGHT, "another-pin")
    assert PinFile(file.path).is_set


def test_the_right_pin_resets_the_tries_even_at_the_fifth(file: PinFile) -> None:
    for _ in range(2):
        assert [answer(file, pin) for pin in [WRONG] * 4 + [RIGHT]][-1] == "taken"
    assert answer(file, WRONG) == "That is not the PIN; 4 tries are left."


@pytest.mark.slow
def test_the_lockout_expires_and_allows_five_new_tries(
    file: PinFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(TRIES):
        answer(file, WRONG)
    left_s = entry(path)["locked_until"] - time.time()
    assert LOCKED_S - 10 < left_s <= LOCKED_S

    write_entry(path, locked_until=time.time() + 100)
    assert answer(file, RIGHT) == "The PIN is locked for 2 more min, after 5 wrong tries."
    write_entry(path, locked_until=time.time() + 5)
    assert answer(file, RIGHT) == "The PIN is locked for 1 more min, after 5 wrong tries."

    write_entry(path, locked_until=time.time() - 0.001)
    told = [answer(file, WRONG) for _ in range(TRIES)]
    assert told[0] == "That is not the PIN; 4 tries are left."
    assert "locked for 15 more min" in answer(file, RIGHT), "it locks again after five more"
    write_entry(path, locked_until=time.time() - 0.001)
    assert answer(file, RIGHT) == "taken"

    monkeypatch.setattr(pin_module, "LOCKED_S", 0.2)
    for _ in range(TRIES):
        answer(file, WRONG)
    deadline = time.monotonic() + 10
    while "locked for" in (now := answer(file, RIGHT)):
        assert time.monotonic() < deadline
    assert now == "taken", "without anybody's hand in the file"


def test_wrong_pins_lock_who_gave_them_and_nobody_else(file: PinFile) -> None:
    for _ in range(TRIES):
        answer(file, WRONG, "session a")
    assert "locked for 15 more min" in answer(file, RIGHT, "session a")
    for other in ("session b", "token 7", pin_module.TERMINAL):
        assert answer(file, WRONG, other) == "That is not the PIN; 4 tries are left."
        assert answer(file, RIGHT, other) == "taken"
    for _ in range(TRIES):
        answer(file, WRONG)
    assert "locked for 15 more min" in answer(file, RIGHT)
    assert answer(file, RIGHT, "token 7") == "taken", "nor does the terminal lock pages"


@pytest.mark.slow
def test_thirty_wrong_pins_an_hour_lock_pages_and_tokens_and_never_the_terminal(
    file: PinFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.time()
    for number in range(TRIES_AN_HOUR):
        if number % 5 == 0:
            assert answer(file, RIGHT, "session 99") == "taken", "right ones do not count"
        assert "left." in answer(file, WRONG, f"session {number // 3}")
    for who in ("session 99", "session new", "token 7"):
        assert "locked on pages and for tokens for" in answer(file, RIGHT, who)
    assert len(entry(path)["tried"]) == TRIES_AN_HOUR
    assert answer(file, WRONG) == "That is not the PIN; 4 tries are left."
    assert answer(file, RIGHT) == "taken"
    monkeypatch.setattr(time, "time", lambda: began + pin_module.HOUR_S + 60)
    assert answer(file, RIGHT, "session new") == "taken"
    assert set(entry(path)["elsewhere"]) == set(), "what is older than an hour is forgotten"


def test_a_clock_set_back_cannot_extend_the_lockout_for_years(file: PinFile, path: Path) -> None:
    for _ in range(TRIES):
        answer(file, WRONG)
    years = time.time() + 3 * 365 * 24 * 3600
    write_entry(path, locked_until=years)
    assert answer(file, WRONG) == "That is not the PIN; it is now locked for 15 minutes.", "one look, not five"
    assert answer(file, RIGHT) == "The PIN is locked for 15 more min, after 5 wrong tries."
    assert entry(path)["locked_until"] <= time.time() + LOCKED_S
    write_entry(path, locked_until=years)
    assert answer(file, RIGHT) == "taken"


def test_only_five_of_twenty_concurrent_tries_are_checked(file: PinFile, path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        elsewhere = [pool.submit(tries_of_a_process, path, *[WRONG] * 4) for _ in range(3)]
        here = [pool.submit(answer, PinFile(path), WRONG) for _ in range(8)]
        told = [one.result(60) for one in here] + list(chain(*(one.result(60) for one in elsewhere)))
    assert len(told) == 20
    looked = [one for one in told if one.startswith("That is not the PIN")]
    refused = [one for one in told if one.startswith("The PIN is locked for 15 more min")]
    assert (len(looked), len(refused)) == (TRIES, 15), told
    assert tries_of_a_process(path, RIGHT) == ["The PIN is locked for 15 more min, after 5 wrong tries."]


def test_does_not_check_even_the_right_pin_after_five_counted_tries(file: PinFile, path: Path) -> None:
    """Twenty guesses from everywhere, the right one in each process after more wrong ones than there are tries."""
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(lambda _one: tries_of_a_process(path, *[WRONG] * TRIES, RIGHT), range(4)))
    assert all("taken" not in one for one in told), told
    assert sum(line.startswith("That is not") for line in chain(*told)) == TRIES


def test_a_process_killed_during_a_try_has_used_that_try(file: PinFile, path: Path) -> None:
    for used in range(1, TRIES + 1):
        done = subprocess.run(
            [sys.executable, "-c", KILLED_AT_THE_LOOK, str(path), WRONG], capture_output=True, timeout=60, check=False
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert entry(path)["tries"] == used
    assert answer(file, RIGHT) == "The PIN is locked for 15 more min, after 5 wrong tries."


# -- what can be no PIN ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weak", "says"),
    [
        ("", "6 to 64 characters"),
        ("83921", "6 to 64 characters"),
        ("x7" * 33, "6 to 64 characters"),
        ("  839217", "without white space around"),
        ("839217\n", "without white space around"),
        ("8392\t17", "6 to 64 characters"),
        ("111111", "too easy to guess"),
        ("77777777", "too easy to guess"),
        ("121212", "too easy to guess"),
        ("123456", "too easy to guess"),
        ("012345678", "too easy to guess"),
        ("987654", "too easy to guess"),
        ("abcdef", "too easy to guess"),
    ],
)
def test_rejects_an_easily_guessed_pin_without_showing_it(
    path: Path, file: PinFile, tmp_path: Path, weak: str, says: str
) -> None:
    fresh = PinFile(tmp_path / "fresh" / "approval.toml")
    with pytest.raises(BadInput, match=says) as refused:
        fresh.set(weak)
    assert not weak or weak not in str(refused.value)
    assert not fresh.path.parent.exists()
    before = path.read_bytes()
    with pytest.raises(BadInput, match=says):
        file.change(RIGHT, weak)
    assert path.read_bytes() == before, "nothing is changed, and no try is used"


def test_accepts_words_digits_and_non_ascii_letters_as_a_pin(tmp_path: Path) -> None:
    for number, pin in enumerate(("839217", "correct horse", "größe-値-9", "x" * 32 + "yz" * 16)):
        file = PinFile(tmp_path / str(number) / "approval.toml")
        file.set(pin)
        file.check(pin)


# -- fails closed ------------------------------------------------------------------------------------------------------


def open_to_others(path: Path) -> None:
    path.chmod(0o640)


def a_folder_open_to_others(path: Path) -> None:
    path.parent.chmod(0o750)


def a_link(path: Path) -> None:
    path.rename(path.with_name("real.toml"))
    path.symlink_to("real.toml")


def a_linked_folder(path: Path) -> None:
    real = path.parent.rename(path.parent.with_name("real"))
    path.parent.symlink_to(real)


def a_folder_in_its_place(path: Path) -> None:
    path.unlink()
    path.mkdir()


def garbage(path: Path) -> None:
    path.write_text(f"pin = = {RIGHT}\n")


def no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00pin")


def another_table(path: Path) -> None:
    path.write_text('[pins]\npolicy = "human"\n')


def no_table(path: Path) -> None:
    path.write_text('pin = "839217"\n')


def without(name: str) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        left = {key: value for key, value in entry(path).items() if key != name}
        path.write_text(tomlkit.dumps({"pin": left}))

    return spoil


def having(**fields: Any) -> Callable[[Path], None]:
    return lambda path: write_entry(path, **fields)


SPOILED = [
    pytest.param(open_to_others, "chmod 600", id="others may read it"),
    pytest.param(a_folder_open_to_others, "chmod 700", id="others may read its folder"),
    pytest.param(a_link, "symbolic link", id="a link"),
    pytest.param(a_linked_folder, "a link to one", id="a linked folder"),
    pytest.param(a_folder_in_its_place, "no regular file|cannot be used", id="a folder"),
    pytest.param(garbage, "not valid TOML", id="garbage"),
    pytest.param(no_text, "not UTF-8", id="no text"),
    pytest.param(another_table, "ava pin set", id="another table"),
    pytest.param(no_table, "ava pin set", id="no table"),
    *(
        pytest.param(without(name), "ava pin set", id=f"no {name}")
        for name in ("salt", "hash", "cost", "tries", "locked_until")
    ),
    pytest.param(having(salt="zz"), "ava pin set", id="no salt's form"),
    pytest.param(having(hash=7), "ava pin set", id="no hash's form"),
    pytest.param(having(tries="many"), "ava pin set", id="no number of tries"),
    pytest.param(having(cost=[1, 2]), "ava pin set", id="two numbers of cost"),
    pytest.param(having(cost=[3, 8, 1]), "ava pin set", id="a cost that is none"),
    pytest.param(having(cost=[2**40, 8, 1]), "ava pin set", id="a cost without end"),
    pytest.param(having(cost=[-2, 8, 1]), "ava pin set", id="a cost below nothing"),
]


@pytest.mark.parametrize(("spoil", "says"), sample(SPOILED, 7))
def test_every_operation_rejects_an_untrusted_or_unreadable_pin_file(
    file: PinFile, path: Path, spoil: Callable[[Path], None], says: str
) -> None:
    secret = {entry(path)["hash"], entry(path)["salt"], RIGHT}
    spoil(path)
    for use in (
        lambda: file.is_set,
        lambda: file.check(RIGHT),
        lambda: file.set("another-pin"),
        lambda: file.change(RIGHT, "another-pin"),
        lambda: file.remove(RIGHT),
    ):
        with pytest.raises(ConfigError, match=says) as refused:
            use()
        assert not any(one in str(refused.value) for one in secret), "it stands in no error"


@pytest.mark.parametrize("spoil", [open_to_others, a_link, garbage, without("hash")])
async def test_an_unreadable_pin_file_blocks_all_approvals(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    async with open_lab(tmp_path) as lab:
        proposal = await lab.propose()
        pin = PinFile(lab.runtime.settings.paths.approval_file)
        pin.set(RIGHT)
        spoil(pin.path)
        with pytest.raises(ConfigError, match=r"approval\.toml"):
            await lab.runtime.policy()
        lab.session.pin_given = True  # not even where it was given before
        answer = await lab.approve(proposal)
        assert answer.status == "failed"
        assert str(pin.path) in answer.message
        assert "chmod 600" in answer.message or "Remove the file" in answer.message, answer.message
        assert (await lab.run(proposal.subagent_id)).state == "awaiting_approval"
        assert lab.server.requests == []


# -- the policy --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "env"),
    [
        ("", {}),
        ('approval = "ask"\n', {}),
        ('approval = "auto"\nauto_approve_cents = 100\nauto_approve_daily_cents = 1000\n', {}),
        ('approval = "auto"\n', {"AVA_APPROVAL": "auto"}),
        ('approval = "auto"\n', {"AVA_APPROVAL": "ask"}),
        ('approval = "human"\n', {}),
    ],
)
async def test_a_pin_forces_the_human_approval_policy(tmp_path: Path, config: str, env: dict[str, str]) -> None:
    async with open_lab(tmp_path, config=config, env=env) as lab:
        before = await lab.runtime.policy()
        assert before == env.get("AVA_APPROVAL", lab.runtime.settings.approval)
        pin = PinFile(lab.runtime.settings.paths.approval_file)
        pin.set(RIGHT)
        assert await lab.runtime.policy() == "human", "at once, in a process that runs"
        proposal = await lab.propose()
        assert "/ava approve P-" in proposal.next
        answer = await lab.approve(proposal)
        assert answer.status == "failed" and "only the approval PIN approves" in answer.message
        assert (await lab.run(proposal.subagent_id)).state == "awaiting_approval"

        pin.remove(RIGHT)
        assert await lab.runtime.policy() == before


def test_the_pin_applies_to_a_process_that_loads_its_settings_later(tmp_path: Path, file: PinFile) -> None:
    settings = settings_of(tmp_path / "data", None, 'approval = "auto"\n')
    assert (settings.approval, policy_in_force(settings)) == ("auto", ("human", "there is an approval PIN"))


async def test_no_file_of_the_data_root_contains_the_pin(tmp_path: Path) -> None:
    pins = (RIGHT, "second-Pin-5", WRONG)
    async with open_lab(tmp_path) as lab:
        pin = PinFile(lab.runtime.settings.paths.approval_file)
        pin.set(RIGHT)
        answer(pin, WRONG)
        pin.change(RIGHT, pins[1])
        await lab.approve(await lab.propose())
        assert pins[1] not in repr(pin) and entry(pin.path)["hash"] not in repr(pin)
    files = [each for each in (tmp_path / "data").rglob("*") if each.is_file()]
    assert pin.path in files and tmp_path / "data" / "ava.db" in files
    for each in files:
        content = each.read_bytes()
        assert not any(one.encode() in content for one in pins), each


TRY = """
import sys
from pathlib import Path
from ava_server.core.errors import Refused
from ava_server.config.pin import PinFile
for pin in sys.argv[2:]:
    try:
        PinFile(Path(sys.argv[1])).check(pin)
        print("taken")
    except Refused as refused:
        print(refused)
"""


KILLED_AT_THE_LOOK = """
import os, signal, sys
from pathlib import Path
import ava_server.config.pin as pin
pin._hash = lambda *_given: os.kill(os.getpid(), signal.SIGKILL)
pin.PinFile(Path(sys.argv[1])).check(sys.argv[2])
"""


def answer(file: PinFile, pin: str, who: str = pin_module.TERMINAL) -> str:
    """What a try is answered."""
    try:
        file.check(pin, who)
    except Refused as refused:
        return str(refused)
    return "taken"


def tries_of_a_process(path: Path, *pins: str) -> Sequence[str]:
    done = subprocess.run(
        [sys.executable, "-c", TRY, str(path), *pins], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()
