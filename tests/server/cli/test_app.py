import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from support import terminal
from support.commands.imports import modules_of, own_modules, packages_of_others
from support.terminal import COMMAND, environment, run_on_terminal
from typer.main import get_command

from ava_audit.errors import SchemaNewer, StoreUnavailable
from ava_roles.errors import RoleFileError, UnknownRole
from ava_server.cli import app
from ava_server.cli.options import name_options, read_schema
from ava_server.cli.run import plan_request
from ava_server.config.keys import DELIVERS
from ava_server.core.commands import TWO_WORDS
from ava_server.core.errors import AvaError, BadInput, ConfigError, ModelTimeout, Refused

VALUE = "sk-or-v1-0a1b2c3d4e5f60718293a4b5c6d7e8f9"


def ava(root: Path | str, *args: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return terminal.ava(root, *args, stdin=stdin, env=env)


@pytest.mark.slow
def test_stores_a_key_from_a_pipe_lists_it_without_its_value_and_removes_it(tmp_path: Path) -> None:
    root = tmp_path / "data"
    stored = ava(root, "key", "set", "openrouter", stdin=VALUE + "\n")
    listed = ava(root, "key", "list", BRAVE_API_KEY=VALUE)
    as_json = ava(root, "key", "list", "--json")
    removed = ava(root, "key", "remove", "openrouter")
    again = ava(root, "key", "remove", "openrouter")

    assert stored.stdout.splitlines() == [
        f"Data root: {root}",
        f"Stored the key for openrouter in {root}/keys.toml.",
    ]
    assert listed.stdout.splitlines() == [
        f"Data root: {root}",
        "brave       BRAVE_API_KEY",
        f"openrouter  {root}/keys.toml",
    ]
    assert f'"keys": [{{"provider": "openrouter", "from": "{root}/keys.toml", "used": true}}]' in as_json.stdout
    assert removed.stdout.splitlines()[0] == f"Data root: {root}"
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    for result in (stored, listed, as_json, removed, again):
        assert VALUE not in result.stdout + result.stderr


def test_a_key_typed_at_a_terminal_is_not_echoed(tmp_path: Path) -> None:
    with run_on_terminal(tmp_path, "key", "set", "openrouter", columns=300) as screen:
        screen.until("(not shown): ")
        screen.type(VALUE + "\n")
        assert screen.ended() == 0

    assert VALUE not in screen.text
    assert VALUE in (tmp_path / "keys.toml").read_text()


NO_STEPS = "has no steps; begin each of them with [[steps]]"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("5", NO_STEPS),
        ("true", NO_STEPS),
        ('"text"', NO_STEPS),
        ("null", NO_STEPS),
        ('{"steps": 5}', NO_STEPS),
        ("[1, 2]", "steps: number 1 is '1', no object; give "),
        ('{"retry_of": 5, "steps": [1]}', "retry"),
    ],
)
def test_a_file_of_steps_with_other_json_is_refused_in_a_sentence(tmp_path: Path, content: str, says: str) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(content)
    refused = ava(tmp_path / "data", "run", "--steps", str(plan), "--yes", "--max-cost", "1")
    assert refused.returncode == 2 and says in refused.stderr, refused.stderr
    assert refused.stderr.startswith("ava: --") and refused.stderr.count("\n") == 1


STEP = b'{"id": "a", "role": "researcher", "task": "x"}'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plan.json", b"\xef\xbb\xbf[" + STEP + b"]"),
        ("plan.toml", b'\xef\xbb\xbf[[steps]]\nid = "a"\nrole = "researcher"\ntask = "x"\n'),
        ("plan", b'\xef\xbb\xbf[[steps]]\nid = "a"\nrole = "researcher"\ntask = "x"\n'),
    ],
)
def test_a_file_of_steps_may_begin_with_a_byte_order_mark(tmp_path: Path, name: str, content: bytes) -> None:
    plan = tmp_path / name
    plan.write_bytes(content)
    assert plan_request(plan, {}) == {"steps": [{"id": "a", "role": "researcher", "task": "x"}]}


def test_files_that_options_name_are_read_to_a_bound_and_without_a_mark(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--steps: /dev/zero has more than 4,000,000 bytes"):
        plan_request(Path("/dev/zero"), {})
    with pytest.raises(BadInput, match="--output-schema: /dev/zero has more than 4,000,000 bytes"):
        read_schema("--output-schema", Path("/dev/zero"))
    schema = tmp_path / "schema.json"
    schema.write_bytes(b'\xef\xbb\xbf{"type": "object"}')
    assert read_schema("--output-schema", schema) == {"type": "object"}
    schema.write_text('{"type": "object", "type": "array"}')
    with pytest.raises(BadInput, match="the key 'type' stands twice in one object"):
        read_schema("--output-schema", schema)
    endless = ava(tmp_path / "data", "run", "researcher", "-", "--yes", stdin="x" * 4_000_001)
    assert endless.returncode == 2 and "more than 4,000,000 bytes came from stdin" in endless.stderr


@pytest.mark.parametrize(
    "content",
    [
        b'[{"id": "a", "role": "researcher", "task": "x", "task": "y"}]',
        b'{"steps": [], "steps": [' + STEP + b"]}",
        b'[{"id": "a", "role": "researcher", "task": "x", "output_schema": {"type": "object", "type": "array"}}]',
    ],
)
def test_a_key_that_stands_twice_in_a_file_of_steps_is_refused(tmp_path: Path, content: bytes) -> None:
    plan = tmp_path / "plan.json"
    plan.write_bytes(content)
    with pytest.raises(BadInput, match=r"the key '(task|steps|type)' stands twice in one object; give it once"):
        plan_request(plan, {})


@pytest.mark.parametrize(
    "words", [("key", "set", "openrouter"), ("secret", "set", "CRM_TOKEN", "--for", "example.org")]
)
def test_an_empty_key_or_secret_says_that_nothing_arrived(tmp_path: Path, words: tuple[str, ...]) -> None:
    what = "key" if words[0] == "key" else "value"
    for given in ("", "\n", "  \t\n", "\n" + VALUE):
        piped = ava(tmp_path / "data", *words, stdin=given)
        assert piped.returncode == 2 and f"No {what} arrived" in piped.stderr, piped.stderr
    for typed in ("\n", "  \n", "\x04"):
        with run_on_terminal(tmp_path / "data", *words, columns=300) as screen:
            screen.until("(not shown): ")
            screen.type(typed)
            assert screen.ended() == 2
        assert f"No {what} was typed; nothing is stored." in screen.text
    assert not (tmp_path / "data").exists()


def test_an_unknown_name_is_rejected_before_asking_for_the_key(tmp_path: Path) -> None:
    with run_on_terminal(tmp_path / "data", "key", "set", "openruter") as screen:
        assert screen.ended() == 2
    assert "Did you mean openrouter?" in screen.text
    assert "(not shown)" not in screen.text
    assert not (tmp_path / "data").exists()

    (tmp_path / "config.toml").write_text('[providers.LM-Studio]\nbase_url = "http://127.0.0.1:1234/v1"\n')
    own = ava(tmp_path, "key", "set", "lm-studio", stdin=VALUE)
    assert (own.returncode, own.stderr) == (0, "")
    listed = ava(tmp_path, "key", "list", AVA_KEY_FORGOTTEN=VALUE).stdout.splitlines()
    assert listed[1:] == [
        "forgotten  AVA_KEY_FORGOTTEN (not used: config.toml has no [providers.forgotten])",
        f"lm_studio  {tmp_path}/keys.toml",
    ]


@pytest.mark.parametrize("engine", sorted(DELIVERS))
def test_the_credentials_of_an_engine_are_stored_like_a_key(tmp_path: Path, engine: str) -> None:
    stored = ava(tmp_path, "key", "set", engine, stdin="ava:a-long-password-of-the-engine")
    assert (stored.returncode, stored.stderr) == (0, "")
    unused = f'(not used: config.toml has no engine = "{engine}" under [delivery])'
    assert ava(tmp_path, "key", "list").stdout.splitlines()[1] == f"{engine}  {tmp_path}/keys.toml {unused}"
    assert "its key is not used" not in ava(tmp_path, "doctor", "--all").stdout


@pytest.mark.slow
def test_the_list_and_the_doctor_say_which_variable_is_not_used_and_why(tmp_path: Path) -> None:
    env = {"ANTHROPIC_API_KEY": VALUE, "ANTHROPIC_BASE_URL": "http://gateway.example:4000", "GROQ_API_KEY": "dummy-key"}
    gateway = "ANTHROPIC_API_KEY is not used: ANTHROPIC_BASE_URL is set, so that key is for gateway.example"
    assert ava(tmp_path, "key", "list", **env).stdout.splitlines()[1:] == [
        f"anthropic  {gateway}",
        "groq       GROQ_API_KEY is not used, because its value is not a key: it is a placeholder",
    ]
    assert '"from": "ANTHROPIC_API_KEY", "used": false' in ava(tmp_path, "key", "list", "--json", **env).stdout
    report = " ".join(ava(tmp_path, "doctor", "--all", **env).stdout.split())
    assert gateway in report and VALUE not in report
    (tmp_path / "config.toml").write_text('[providers.anthropic]\nbase_url = "http://gateway.example:4000/v1"\n')
    assert "anthropic  ANTHROPIC_API_KEY" in ava(tmp_path, "key", "list", **env).stdout.splitlines()


@pytest.mark.parametrize(
    "key",
    [
        "gsk_0123456789abcdef0123456789abcdef",
        "AIzaAb3Cd4Ef5Gh6Ij7Kl8Mn9Op0Qr1St2Uv3Wx",
        "abcdefghijklmnopqrstuvwxy",
        "a1b2c3d4e5f6g7",
        VALUE,
    ],
)
@pytest.mark.parametrize("command", ["set", "remove"])
def test_a_key_typed_as_the_provider_name_is_not_echoed(tmp_path: Path, command: str, key: str) -> None:
    for args in ((key,), ("openrouter", key)):
        done = ava(tmp_path / "data", "key", command, *args, stdin=VALUE)
        said = (done.stdout + done.stderr).lower()
        assert (done.returncode, "Traceback" in done.stderr) == (2, False)
        assert key.lower() not in said and key.lower().replace("-", "_") not in said
        assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("typed", "code"), [("\x03", 130), ("\x04", 2)])
def test_leaving_the_key_prompt_ends_its_line(tmp_path: Path, typed: str, code: int) -> None:
    with run_on_terminal(tmp_path, "key", "set", "openrouter", columns=300) as screen:
        screen.until("(not shown): ")
        if code == 130:
            screen.interrupt()
        else:
            screen.type(typed)
        assert screen.ended() == code
    assert screen.text.partition("(not shown): ")[2].startswith("\n")
    assert screen.text.endswith("\n")
    assert not (tmp_path / "keys.toml").exists()


@pytest.mark.parametrize(("provider", "price"), [("kagi", "$0.012"), ("brave", "$0.005")])
def test_a_search_key_works_at_once_and_its_price_is_shown(tmp_path: Path, provider: str, price: str) -> None:
    stored = ava(tmp_path, "key", "set", provider, stdin=VALUE)
    assert stored.returncode == 0
    assert f"search by {provider.title()}: about {price} each, not included in any cost cap." in stored.stdout
    assert '"used": true' in ava(tmp_path, "key", "list", "--json").stdout

    (tmp_path / "config.toml").write_text('[search]\nengine = "none"\n')
    assert "Web search does not use it" in ava(tmp_path, "key", "set", provider, stdin=VALUE).stdout


@pytest.mark.parametrize(
    ("sentence", "told"),
    [
        ("max_cost_cents: -1 is no amount", "--max-cost: -1 is no amount"),
        ("task: leave `output_schema` out", "TASK: leave `--output-schema` out"),
        ("blocked_tools.0: 3 is no text", "--blocked-tools.0: 3 is no text"),
        ("too low; give max_cost_cents 13 or more ($0.13), or", "too low; give --max-cost 0.13 or more, or"),
        ("today's budget is used up: `ava status`", "today's budget is used up: `ava status`"),
        ("something: of `unknown` kind", "something: of `unknown` kind"),
    ],
)
def test_an_error_about_a_tool_argument_names_the_command_line_option(sentence: str, told: str) -> None:
    assert name_options(sentence) == told


LOOKING = [
    ("key", "list"),
    ("key", "set", "openai"),
    ("models",),
    ("logs",),
    ("status", "--once"),
    ("show", "S-123456"),
    ("verify",),
]


@pytest.mark.slow
@pytest.mark.parametrize("args", LOOKING)
def test_every_command_refuses_an_impossible_data_root(tmp_path: Path, args: tuple[str, ...]) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("text")
    link.symlink_to(tmp_path / "nowhere")
    for root, says in (
        (file, "is not a folder"),
        (file / "below", "Not a directory"),
        (link, "is a broken link"),
        (tmp_path / ("x" * 300), "File name too long"),
        (Path("/proc/ava"), "cannot be created in /proc"),
    ):
        done = ava(root, *args, stdin=VALUE)
        assert (done.returncode, done.stderr.count("\n")) == (30, 1), done.stderr
        first = f"ava {args[0]} checks the data root (`checked_root`) before it reads the settings"
        assert done.stderr.startswith(f"ava: The data root {root}"), f"{first}: {done.stderr}"
        assert says in done.stderr
        assert "AVA_DATA_ROOT" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look into every folder")
@pytest.mark.parametrize("args", LOOKING)
def test_a_data_root_of_another_user_is_reported_in_one_sentence(tmp_path: Path, args: tuple[str, ...]) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    try:
        for root in (closed, closed / "data"):
            done = ava(root, *args, stdin=VALUE)
            assert (done.returncode, done.stderr.count("\n")) == (30, 1), done.stderr
    finally:
        closed.chmod(0o700)


def test_an_error_is_one_sentence_without_a_traceback_and_sets_the_exit_code(tmp_path: Path) -> None:
    wrong_root = ava("relative/path", "key", "list")
    wrong_value = ava(tmp_path, "key", "set", "openai", stdin="two words of text\n")
    wrong_word = ava(tmp_path, "keys")

    assert (wrong_root.returncode, wrong_value.returncode, wrong_word.returncode) == (30, 2, 2)
    assert wrong_root.stderr.startswith("ava: AVA_DATA_ROOT is ")
    assert "two words" not in wrong_value.stderr
    for result in (wrong_root, wrong_value):
        assert result.stderr.count("\n") == 1
        assert "Traceback" not in result.stderr
    assert "No such command" in wrong_word.stderr


def test_ctrl_c_exits_with_130_and_without_a_traceback(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ava_server", "key", "set", "openai"],
        env={"PATH": os.environ["PATH"], "AVA_DATA_ROOT": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("Data root: ")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)

    assert process.returncode == 130
    assert "Traceback" not in errors


@pytest.mark.parametrize("width", [60, 80, 120])
def test_help_lists_every_command_in_a_group_and_fits_the_terminal(tmp_path: Path, width: int) -> None:
    shown = ava(tmp_path, "-h", COLUMNS=str(width)).stdout
    headings = [line for line in shown.splitlines() if line.endswith(":") and not line.startswith((" ", "Usage"))]
    assert headings == ["Options:", "Subagents:", "Records:", "Set-up:", "Server:"]
    grouped = [name for names in app.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted({*app.COMMANDS, *TWO_WORDS})
    assert all(f"\n  {name} " in shown for name in grouped)
    assert max(map(len, shown.splitlines())) <= width


@pytest.mark.parametrize("args", ["--help", "run --help", "--version", "--no-such-option", "show S-123456"])
def test_whatever_is_said_to_a_reader_that_has_gone_ends_as_the_page_of_commands_says(
    tmp_path: Path, args: str
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, *args.split()], env=environment(tmp_path), stdout=writer, stderr=writer, check=False, timeout=60
    )
    os.close(writer)
    assert done.returncode == 141


@pytest.mark.parametrize("word", ["remove", "change"])
def test_without_a_pin_nothing_is_said_of_approvals(tmp_path: Path, word: str) -> None:
    said = ava(tmp_path, "pin", word).stderr
    assert said == "ava: There is no approval PIN. Set one with `ava pin set`.\n"


@pytest.mark.slow
@pytest.mark.parametrize("home", ["", "relative"])
def test_a_home_that_is_no_folder_of_its_own_is_that_of_the_system(tmp_path: Path, home: str) -> None:
    shown = ava(tmp_path, "init", "cursor", HOME=home).stdout  # without --yes, nothing is written
    assert f"Cursor: {pwd.getpwuid(os.getuid()).pw_dir}/.cursor/mcp.json" in shown


def test_version_and_help_list_what_exists(tmp_path: Path) -> None:
    assert ava(tmp_path, "--version").stdout.startswith("ava 0.")
    overview = ava(tmp_path, "--help", COLUMNS="80").stdout
    assert [word for word in app.COMMANDS if word not in overview] == []
    for text, heading in ((overview, "Subagents"), (ava(tmp_path, "key", "--help", COLUMNS="80").stdout, "Commands")):
        commands = text.partition(f"{heading}:\n")[2]
        assert commands and "..." not in commands, "no line of it is cut"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadInput("say what"), 2),
        (UnknownRole("say what"), 2),
        (Refused("say what"), 10),
        (ModelTimeout("say what", kind="timeout", sent=True, answered=False, retryable=True), 20),
        (ConfigError("say what"), 30),
        (RoleFileError("odd.md", "say what"), 30),
        (SchemaNewer("say what"), 30),
        (StoreUnavailable("say what"), 30),
        (AvaError("say what"), 70),
        (ExceptionGroup("tasks", [ExceptionGroup("inner", [ConfigError("say what")])]), 30),
        (KeyboardInterrupt(), 130),
        (BaseExceptionGroup("tasks", [KeyboardInterrupt()]), 130),
        (typer.Exit(21), 21),
    ],
)
def test_each_error_has_its_exit_code_wherever_it_is_raised(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exit_code_of(error, monkeypatch) == code
    file = "odd.md: " if isinstance(error, RoleFileError) else ""
    assert capsys.readouterr().err == (f"ava: {file}say what\n" if code not in (130, 21) else "")


def test_a_bug_raised_together_with_an_ava_error_is_not_hidden(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    both = ExceptionGroup("tasks", [ConfigError("say what"), ZeroDivisionError("so that")])
    assert exit_code_of(both, monkeypatch) == 70
    assert "ZeroDivisionError: so that" in capsys.readouterr().err


def test_a_bug_shows_its_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert exit_code_of(ZeroDivisionError("so that"), monkeypatch) == 70
    text = capsys.readouterr().err
    assert "Traceback" in text
    assert "a fault of Ava's own (ZeroDivisionError)" in text


def exit_code_of(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a command that raises the error, registered as the others are."""

    def fail() -> None:
        raise error

    class Failing:
        fail_command = staticmethod(fail)

    monkeypatch.setitem(sys.modules, "failing_command", Failing)
    monkeypatch.setattr(app, "COMMANDS", {"fail": "failing_command"})
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # Typer sets one
    return app.main(["fail"])


def test_a_command_imports_neither_rich_nor_other_commands(tmp_path: Path) -> None:
    program = (
        "import sys; from ava_server.cli.app import main; code = main(['key', 'list']); "
        "sys.exit(code or any(name in sys.modules for name in ('rich', 'mcp', 'tomlkit', 'portalocker')))"
    )
    environment = {"PATH": os.environ["PATH"], "AVA_DATA_ROOT": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0


@pytest.mark.parametrize("args", [("--help",), (), ("--no-such-option",), ("--version",)])
def test_help_imports_typer_and_no_command(tmp_path: Path, args: tuple[str, ...]) -> None:
    modules = modules_of(tmp_path, *args)
    assert packages_of_others(modules) <= {"typer", "annotated_doc", "shellingham"}
    assert len(own_modules(modules)) <= 14, own_modules(modules)


def test_a_run_of_the_offline_reader_loads_no_http_library_and_draws_nothing_in_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "lease.md").write_text("The rent of the flat is 900 euros.\n")
    command = ("run", "researcher", "What is the rent of the flat?", "--workspace", str(tmp_path / "folder"))
    modules = modules_of(tmp_path / "data", *command, "-m", "offline/extractive", "--yes")
    assert "ava_server.models.offline" in modules
    assert not packages_of_others(modules) & {"httpx2", "httpcore2", "h11", "markdown_it"}


def test_makes_checks_only_of_options_that_are_given(tmp_path: Path) -> None:
    assert "typer._adapters" not in modules_of(tmp_path, "status", "--once")
    assert "typer._adapters" in modules_of(tmp_path, "status", "--once", "--url", "x")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the default data root is elsewhere there")
def test_the_data_root_is_named_only_if_it_is_not_the_default_one_or_with_v(tmp_path: Path) -> None:
    here = {"XDG_DATA_HOME": str(tmp_path), "AVA_DATA_ROOT": ""}
    heading = f"Data root: {tmp_path / 'ava'}\n"
    for words in (("key", "list"), ("logs",), ("approve",), ("models", "openai"), ("memory", "list")):
        assert "Data root" not in ava(tmp_path, *words, **here).stdout, words
        for verbose in ((*words, "-v"), ("-v", *words), (*words, "--verbose"), (words[0], "-v", *words[1:])):
            assert ava(tmp_path, *verbose, **here).stdout.startswith(heading), verbose
    exported = ava(tmp_path, "-v", "logs", "export", "-o", str(tmp_path / "x"), **here)
    assert exported.stdout.startswith(heading) and f" entries in {tmp_path / 'x'}" in exported.stdout
    assert "--verbose" not in ava(tmp_path, "key", "list", "-h").stdout, "the help of ava itself has it"
    assert "Data root" not in ava(tmp_path / "ava", "logs", XDG_DATA_HOME=str(tmp_path)).stdout
    assert ava(tmp_path, "logs").stdout.startswith(f"Data root: {tmp_path}\n")


SHORT = {
    "--help": "-h", "--workspace": "-w", "--model": "-m", "--yes": "-y", "--quiet": "-q", "--out": "-o",
    "--output": "-o", "--file": "-f", "--follow": "-f",
}  # fmt: skip


def test_an_option_has_the_same_short_form_in_every_command() -> None:
    found: dict[str, set[str]] = {}
    group: Any = get_command(app.build())
    for command in [
        group,
        *(each for one in group.commands.values() for each in (one, *getattr(one, "commands", {}).values())),
    ]:
        for param in command.params:
            short = [name for name in param.opts if len(name) == 2]
            for long in (name for name in param.opts if name in SHORT):
                found.setdefault(long, set()).update(short or ["none"])
    assert found == {long: {short} for long, short in SHORT.items() if long in found}
    assert {"--workspace", "--yes", "--file"} <= found.keys()
