from __future__ import annotations

import re

import pytest
from support.repository import REPOSITORY

from ava_roles.catalog import starting_text
from ava_roles.errors import RoleFileError
from ava_roles.role import COMMON_TOOLS, RESEARCH_TOOLS, Role, first_sentence, parse_role


def role(front: str, body: str = "Do it well.") -> Role:
    return parse_role(f"---\n{front}\n---\n\n{body}\n", ".ava/roles/mine.md", "mine")


def fault(front: str) -> str:
    with pytest.raises(RoleFileError) as raised:
        role(f"description: Does it.\n{front}")
    return str(raised.value)


def test_a_minimal_file_gets_custom_role_defaults_and_researcher_tools() -> None:
    mine = role("description: Does it.")
    assert mine == Role(
        name="mine",
        description="Does it.",
        body="Do it well.",
        tools=(*RESEARCH_TOOLS, *COMMON_TOOLS),
        model="balanced",
        timeout_s=600.0,
        max_cost_cents=50.0,
        max_tokens=2_000_000,
        max_iterations=20,
        max_tool_calls=25,
        estimated_minutes=(2, 8),
        needs=(),
        network=False,
        secrets=(),
        plan=False,
        extended_thinking=False,
        verify=None,
        setup=None,
        carry=(),
        source=".ava/roles/mine.md",
        text="---\ndescription: Does it.\n---\n\nDo it well.\n",
        ignored_keys=(),
    )


def test_a_new_file_and_the_page_explain_every_key() -> None:
    keys = {field.alias or name for name, field in Role.model_fields.items()}
    keys -= {"body", "source", "text", "ignored_keys"}
    new = starting_text()
    assert {key for key in keys if not re.search(rf"^(?:# )?{key}: ", new, re.MULTILINE)} == set()
    assert {tool for tool in RESEARCH_TOOLS if tool not in new} == set()
    page = (REPOSITORY / "docs" / "reference" / "roles.md").read_text("utf-8")
    assert {key for key in keys if f"`{key}`" not in page} == set()


def test_reads_every_supported_key() -> None:
    mine = role(
        "name: tester\ndescription: Tests.\ntools: [run_bash, read_file]\nmodel: openrouter:some/model-1\n"
        "timeout: 90.5\nmax_cost_cents: 12.5\nmax_tokens: 5000\nmax_iterations: 7\nmax_tool_calls: 9\n"
        "estimated_minutes: [1, 3]\nneeds: run_bash\nnetwork: true\nsecrets: [API_TOKEN]\nplan: true\n"
        "extended_thinking: yes\nverify: pytest -q\nsetup: pip install -e .\ncarry: [.venv, web/node_modules]"
    )
    assert (mine.name, mine.model, mine.timeout_s, mine.max_cost_cents) == (
        "tester",
        "openrouter:some/model-1",
        90.5,
        12.5,
    )
    assert (mine.max_tokens, mine.max_iterations, mine.max_tool_calls) == (5000, 7, 9)
    assert (mine.estimated_minutes, mine.needs, mine.secrets) == ((1, 3), ("run_bash",), ("API_TOKEN",))
    assert mine.network and mine.plan and mine.extended_thinking
    assert (mine.verify, mine.setup) == ("pytest -q", "pip install -e .")
    assert mine.carry == (".venv", "web/node_modules")
    assert mine.tools == ("run_bash", "read_file", *COMMON_TOOLS)


def test_reads_a_claude_code_agent_file_and_reports_what_is_unsupported() -> None:
    mine = role(
        "name: release-notes\n"
        "description: Use this agent for notes. Examples:\\n<example>user: write them</example>\n"
        "tools: Read, Grep, Glob, Bash, WebFetch, WebSearch, Edit, Write, TodoWrite, Bash(git log:*, x)\n"
        "disallowedTools: Write, mcp__forge\n"
        "model: opus\nmaxTurns: 12\ncolor: purple\nhooks:\n  Stop: [{command: [a]}]"
    )
    assert mine.name == "release-notes"
    assert first_sentence(mine.description) == "Use this agent for notes."
    assert mine.tools == (
        *("read_file", "search_codebase", "find_files", "run_bash", "read_webpages", "web_search", "edit_file"),
        *COMMON_TOOLS,
    )
    assert (mine.model, mine.max_iterations) == ("deep", 12)
    assert mine.ignored_keys == ("color", "hooks", "tools: TodoWrite", "tools: Bash(git log:*, x)")


@pytest.mark.parametrize(
    ("model", "tier"),
    [("haiku", "fast"), ("sonnet", "balanced"), ("opus", "deep"), ("inherit", "balanced"), ("Haiku", "fast")],
)
def test_maps_claude_code_model_names_to_tiers(model: str, tier: str) -> None:
    assert role(f"description: d\nmodel: {model}").model == tier


def test_keeps_tools_of_mcp_servers_and_can_deny_a_whole_server() -> None:
    front = "description: d\ntools: [mcp__ssh__run, mcp__forge__issue, mcp__forge__merge]\n"
    assert role(front).tools[:3] == ("mcp__ssh__run", "mcp__forge__issue", "mcp__forge__merge")
    assert role(front + "disallowedTools: mcp__forge__merge").tools[:2] == (
        "mcp__ssh__run",
        "mcp__forge__issue",
    )
    for denied in ("mcp__forge", "mcp__forge__*"):
        assert role(front + f"disallowedTools: [{denied}]").tools == ("mcp__ssh__run", *COMMON_TOOLS)


def test_denying_a_tool_by_pattern_denies_it_completely() -> None:
    mine = role("description: d\ntools: Bash, Read\ndisallowedTools: Bash(rm:*), Agent, (x)")
    assert mine.tools == ("read_file", *COMMON_TOOLS)
    assert mine.ignored_keys == ("disallowedTools: Agent", "disallowedTools: (x)")


def test_a_common_tool_can_be_denied_and_an_empty_tool_list_keeps_the_common_ones() -> None:
    assert role("description: d\ntools: []\ndisallowedTools: [recall]").tools == tuple(
        tool for tool in COMMON_TOOLS if tool != "recall"
    )


def test_accepts_windows_line_endings_a_byte_order_mark_and_an_empty_body() -> None:
    mine = parse_role("\ufeff---\r\ndescription: d\r\ntimeout: 5\r\n---\r\n", "f.md", "f")
    assert (mine.description, mine.timeout_s, mine.body) == ("d", 5.0, "")


def test_horizontal_rules_in_the_body_do_not_end_the_frontmatter() -> None:
    assert role("description: d", "One.\n\n---\n\nTwo.").body == "One.\n\n---\n\nTwo."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("front", "told"),
    [
        ("name: Mixed Case", "line 3, name: must be lower case letters, digits, - and _, a letter first"),
        ("timeout: -3", "line 3, timeout: Input should be greater than 0; given: -3"),
        ("timeout: 0", "line 3, timeout: Input should be greater than 0; given: 0"),
        ("timeout: .inf", "line 3, timeout: Input should be less than"),
        ("timeout: '5'", 'line 3, timeout: Input should be a valid number; given: "5"'),
        ("timeout: !!int x", "line 3, timeout: cannot be read as a value"),
        ("maxTurns: 2.5", "line 3, maxTurns: Input should be a valid integer; given: 2.5"),
        ("max_tokens: true", "line 3, max_tokens: Input should be a valid integer; given: true"),
        ("max_tokens: 0x" + "f" * 6000, "given: a number that is too long to show"),
        ("tools: [0x" + "f" * 6000 + "]", "given: a number that is too long to show"),
        ('verify: "a\\ud800b"', "line 3, verify: "),
        ('tools: "read\\u202e_file"', 'line 3, tools: no tool "read_file"'),
        ("tools: web_serch", 'line 3, tools: no tool "web_serch"; did you mean web_search?'),
        ("disallowedTools: xyzzy", 'line 3, disallowedTools: no tool "xyzzy"; known: '),
        ("tools: [read_file, spawn_subagent]", "line 3, tools: spawn_subagent is never given to a subagent"),
        ("tools: {a: b}", "line 3, tools: must be one value or a flat list"),
        ("tools: [[a]]", "line 3, tools: must be one value or a flat list"),
        ("tools: 5", "line 3, tools: must be a list of names"),
        ("needs: [run_bash]", 'line 3, needs: "run_bash" is not among the role\'s tools'),
        ("plan: 'yes'", "line 3, plan: Input should be a valid boolean"),
        ("estimated_minutes: [5]", "line 3, estimated_minutes: "),
        ("estimated_minutes: [8, 2]", "must be two numbers of minutes, the smaller first"),
        (
            "carry: ../x",
            'line 3, carry: must be folders beneath the workspace, e.g. node_modules; given: "../x"',
        ),
        ("carry: [/etc]", "line 3, carry: "),
        ("carry: [a/.git]", "line 3, carry: "),
        ("verify: |\n  one\n  two", "line 3, verify: must be one command line"),
        ("model: two words", "line 3, model: must be a tier (fast, balanced, deep"),
        ("timeout: 3\ntimeout: 4", "line 4, timeout: is given twice"),
        ("maxTurns: 3\nmax_iterations: 4", "line 4, maxTurns: is given twice"),
        ("a: [", "line 3: the frontmatter is not valid YAML"),
        ("a: " + "[" * 3000, "the frontmatter is not valid YAML"),
        ("? [a, b]\n: c", "line 3: a key must be one word"),
        ("bell: \a", "line 3: contains a control character"),
    ],
)
def test_an_error_names_file_line_and_key(front: str, told: str) -> None:
    message = fault(front)
    assert message.startswith(".ava/roles/mine.md, line ")
    assert told in message
    assert len(message) < 500


def test_does_not_repeat_a_value_given_in_place_of_a_secret_name() -> None:
    message = fault("secrets: ['sk live/0123456789']")
    assert "line 3, secrets: must be names of secrets" in message
    assert "0123456789" not in message


@pytest.mark.parametrize("front", ["description:", "description: '  '", "name: x"])
def test_rejects_a_missing_description(front: str) -> None:
    with pytest.raises(RoleFileError, match="description: is missing; write one sentence"):
        role(front)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("# Readme\n", "line 1: a role file begins with a line `---`"),
        ("", "line 1: a role file begins with a line `---`"),
        ("---\ndescription: d\n", "the line `---` that ends the frontmatter is missing"),
        ("---\n---\nbody", "line 2: the frontmatter must be lines of `key: value`"),
        ("---\njust words\n---\n", "line 2: the frontmatter must be lines of `key: value`"),
        ("---\ndescription: d\n---\n" + "x" * 100_001, "a role file has at most 100,000"),
    ],
)
def test_rejects_text_that_is_not_a_role_file(text: str, told: str) -> None:
    with pytest.raises(RoleFileError) as raised:
        parse_role(text, "f.md", "f")
    assert str(raised.value).startswith("f.md")
    assert told in str(raised.value)


def test_reports_the_error_of_the_file_and_not_of_its_quoted_version() -> None:
    with pytest.raises(RoleFileError, match="line 2: the frontmatter is not valid YAML: mapping values"):
        role("description: Use it: now\nb: [")


@pytest.mark.parametrize("words", ["clears \x1b[2J the screen", "has: a colon \x07"])
def test_rejects_a_control_character_even_where_quoting_would_give_valid_yaml(words: str) -> None:
    with pytest.raises(RoleFileError, match="line 3: contains a control character; remove it"):
        role(f"name: a\ndescription: {words}")


def test_limits_the_expansion_of_yaml_aliases() -> None:
    front = "a: &a [x, x]\n" + "".join(
        f"{name}: &{name} [*{before}, *{before}, *{before}, *{before}, *{before}, *{before}]\n"
        for before, name in zip("abcdefghijklm", "bcdefghijklmn", strict=True)
    )
    assert "flat list" in fault(front + "tools: *n")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Reads pages, e.g. PDFs. Then more.", "Reads pages, e.g. PDFs."),
        ("Reads\n  pages! More", "Reads pages!"),
        ("No full stop", "No full stop"),
        ("", ""),
    ],
)
def test_the_first_sentence_ends_where_a_reader_would_end_it(text: str, sentence: str) -> None:
    assert first_sentence(text) == sentence


def test_parsing_the_same_text_again_returns_the_same_role() -> None:
    assert role("description: d") is role("description: d")
