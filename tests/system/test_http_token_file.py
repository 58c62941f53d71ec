"""The token file of the HTTP server: names, changes by two processes at once, damage, and the time of a look-up."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.http_server import token
from support.stdio import make_root

from ava_server.config.tokens import TokenFile, create_token, read_tokens, revoke_token, user_name
from ava_server.core.errors import BadInput, ConfigError, Refused

pytestmark = pytest.mark.slow


# -- the file of tokens -----------------------------------------------------------------------------------------------


def test_rejects_user_names_that_contain_paths_or_look_like_other_names() -> None:
    for name in ("..", ".", "../ana", "a/b", "a\\b", "ana\n", "an\0a", "аna", "ana\u200b", "ａna", "", " ", "a" * 65,
                 "-ana", "ana ben", 'ana"', "ana}", "ana=1", "avatok_x", "\x1b[31mana", "ana:ben", "~ana"):  # fmt: skip
        if name.strip() != "ana":
            with pytest.raises(BadInput):
                user_name(name)
    assert user_name("ana@example.org") == "ana@example.org"


def test_creating_and_revoking_tokens_in_two_processes_loses_nothing(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    token(root, "ana", name="kept")
    path = root / "secrets" / "tokens.toml"
    work = (
        "import sys; from pathlib import Path; from ava_server.config.tokens import create_token, revoke_token\n"
        "path, who = Path(sys.argv[1]), sys.argv[2]\n"
        "for n in range(15):\n"
        "    create_token(path, f'{who}{n}', 'ana', ['read'], None)\n"
        "    if n % 2: revoke_token(path, f'{who}{n}')\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", work, str(path), who]) for who in ("a", "b", "c")]
    tokens = TokenFile(path)
    while any(one.poll() is None for one in running):
        assert tokens.any(), "whoever reads meanwhile finds a whole file"
    assert [one.wait(60) for one in running] == [0, 0, 0]
    assert set(read_tokens(path)) == {"kept", *(f"{who}{n}" for who in "abc" for n in range(0, 15, 2))}
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_linked_corrupt_or_exposed_token_file_lets_nobody_in(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    path = root / "secrets" / "tokens.toml"
    whole = path.read_bytes()
    aside = tmp_path / "aside.toml"
    aside.write_bytes(whole)
    aside.chmod(0o600)

    def refused() -> None:
        with pytest.raises(ConfigError) as error:
            TokenFile(path).find(text)
        assert text not in str(error.value) and not re.search(r"[0-9a-f]{64}", str(error.value))

    path.unlink()
    path.symlink_to(aside)
    refused()
    with pytest.raises(ConfigError):
        create_token(path, "more", "ana", ["read"], None)
    path.unlink()
    for half in (whole[: len(whole) // 2], whole[:-3] + b"\xff", whole.replace(b'"read"', b'"root"'),
                 whole.replace(b'"ana"', b'"../ana"'), whole + b"[x]\n", b"[" * 5_000):  # fmt: skip
        path.write_bytes(half)
        path.chmod(0o600)
        refused()
        with pytest.raises((ConfigError, Refused)):
            revoke_token(path, "of-ana")
    path.write_bytes(whole)
    path.chmod(0o600)
    assert TokenFile(path).find(text) is not None
    path.parent.chmod(0o755)
    refused()


def test_token_lookup_time_does_not_depend_on_matching_characters(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    for number in range(20):
        token(root, "ana", name=f"n{number}")
    tokens = TokenFile(root / "secrets" / "tokens.toml")
    took: dict[str, float] = {}
    tries = {"begins": text[:-1] + ("a" if text[-1] != "a" else "b"), "other": "avatok_" + "z" * 43}
    for name, given in tries.items():
        assert tokens.find(given) is None
        best: list[float] = []
        for _each in range(300):
            began = time.perf_counter()
            tokens.find(given)
            best.append(time.perf_counter() - began)
        took[name] = sorted(best)[len(best) // 2]
    assert 0.5 < took["begins"] / took["other"] < 2
    assert tokens.find("x" * 1_000_000) is None and tokens.find("é" * 40) is None
