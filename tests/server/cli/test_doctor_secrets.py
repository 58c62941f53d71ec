"""`ava doctor` about the secrets for tool calls: what is stored, what is missing, and never a value."""

from pathlib import Path

import pytest
from support.commands.doctor import doctor
from support.terminal import ava

from ava_server.config.secrets import set_secret
from ava_server.core.data_root import DataRoot
from ava_server.service.checks import Setup
from ava_server.service.checks.roles import secrets

VALUE = "tickets-value-9f2c41d7"
ROLE = """---
name: tickets
description: Looks at tickets.
tools: [http_get]
secrets: [TICKETS, WIKI]
---
You look at tickets.
"""


@pytest.fixture
def root(tmp_path: Path) -> DataRoot:
    root = DataRoot(tmp_path / "data")
    root.path.mkdir(mode=0o700)
    return root


def test_says_nothing_without_secrets_and_without_roles_that_list_one(root: DataRoot) -> None:
    assert list(secrets(Setup({}, root))) == []
    assert "secrets" not in doctor(root.path)


def test_lists_stored_secrets_with_hosts_and_missing_ones_with_a_next_step(root: DataRoot) -> None:
    set_secret("TICKETS", VALUE, ["api.example.com", "tickets.example.com:8443"], root.secrets_file)
    set_secret("LOOSE", VALUE[::-1], None, root.secrets_file)
    root.roles.mkdir()
    (root.roles / "tickets.md").write_text(ROLE)
    found = {(each.state, each.text): each.what_to_do for each in secrets(Setup({}, root))}
    assert found == {
        ("ok", "stored: TICKETS for api.example.com and tickets.example.com:8443"): "",
        ("warning", "LOOSE is stored for no host, so no tool can send it"): (
            "Name its host: ava secret set LOOSE --for HOST"
        ),
        ("note", 'the role "tickets" lists WIKI, which is not stored: its calls lack it'): (
            "Store it: ava secret set WIKI --for HOST"
        ),
    }
    done = ava(root.path, "doctor")
    assert done.returncode == 0
    assert VALUE not in done.stdout + done.stderr


def test_a_file_that_others_can_read_is_a_fault(root: DataRoot) -> None:
    set_secret("TICKETS", VALUE, ["api.example.com"], root.secrets_file)
    root.secrets_file.chmod(0o644)
    found = doctor(root.path)["secrets"]
    assert found["state"] == "fault"
    assert "0600" in found["text"] or "chmod" in found["text"]
    assert "no secret is sent" in found["what_to_do"]


def test_hides_a_secret_value_that_was_put_into_another_setting(root: DataRoot) -> None:
    set_secret("TICKETS", VALUE, ["api.example.com"], root.secrets_file)
    root.config.write_text(f'approval = "{VALUE}"\n')
    done = ava(root.path, "doctor")
    assert "approval" in done.stdout and VALUE not in done.stdout + done.stderr
