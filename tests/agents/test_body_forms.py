"""Bodies of an agent's requests are closed at every depth, and what agents send today passes with nothing lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from support.agents.gateway import PLANTED, agent_request, open_gateway
from support.agents.lab import USAGE, agent_lab, agent_run
from support.model_server import Say

from ava_audit.events import AgentRequest
from ava_audit.redaction import Redactor
from ava_server.agents.bodies import Bodies
from ava_server.agents.command import API_TYPES, PACKAGES
from ava_server.agents.forms import (
    FORMS,
    MOST_TAKEN,
    Content,
    Fields,
    FormChoice,
    GooglePart,
    Kinds,
    Leaf,
    Listed,
    Shape,
)
from ava_server.agents.seam import AgentCall, CallRefused
from ava_server.agents.work import answered_models
from ava_server.config.agents import agents_of
from ava_server.config.settings import load_settings
from ava_server.models.providers import RemoteWire

SCHEMA = {"type": "object", "properties": {"file_id": {"type": "string", "const": {"source": "x"}}}, "mode": "pro"}
CACHED = {"cache_control": {"type": "ephemeral"}}


def read(wire: str, redactor: Redactor | None = None, **more: Any) -> AgentCall:
    bodies = Bodies(wire, {"sonnet": "far-sonnet"}, frozenset(), redactor or Redactor({}))
    return bodies.read(json.dumps({**agent_request(wire), "model": "sonnet", **more}).encode())


def user(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


SESSIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "Claude Code": ("messages", {
        "stream": True, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
        "system": [{"type": "text", "text": "You are an agent."}, {"type": "text", "text": "Be brief.", **CACHED}],
        "tools": [{"name": "Bash", "description": "Runs.", "input_schema": SCHEMA, "eager_input_streaming": True}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "<system-reminder>x</system-reminder>", **CACHED}]},
            {"role": "system", "content": "These skills are available."},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Look.", "signature": "EqQBCkYIBxgCKkA="},
                {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix="},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "Bash", "caller": {"type": "direct"},
                 "input": {"command": "ls", "source": {"type": "url"}, "mode": "pro"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": False, "content": "a.py", **CACHED},
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "b.py"}]}]}]}),
    "Codex": ("responses", {
        "stream": True, "store": False, "tool_choice": "auto", "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"}, "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "01a21fdc", "text": {"verbosity": "low", "format": {
            "type": "json_schema", "name": "answer", "strict": True, "schema": SCHEMA}},
        "tools": [
            {"type": "function", "name": "exec", "description": "Runs.", "strict": False, "parameters": SCHEMA},
            {"type": "custom", "name": "apply_patch", "description": "Patches.", "format": {
                "type": "grammar", "syntax": "lark", "definition": "start: x"}},
            {"type": "namespace", "name": "mcp__ava", "description": "Tools.", "tools": [
                {"type": "function", "name": "hand", "description": "x", "strict": False, "parameters": SCHEMA}]}],
        "input": [
            {"type": "message", "role": "developer", "id": "msg_1", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Look."}], "encrypted_content": "gAA="},
            {"type": "message", "role": "assistant", "status": "completed", "phase": "commentary", "content": [
                {"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "exec", "namespace": "mcp__ava",
             "arguments": '{"image_url": "x"}', "status": "completed"},
            {"type": "function_call_output", "id": "fco_1", "call_id": "c1", "output": "a.py"},
            {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** Begin Patch"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "b"}]}]}),
    "opencode": ("chat_completions", {
        "tool_choice": "auto", "reasoning_effort": "high", "temperature": 0.2, "stop": ["END"],
        "tools": [{"type": "function", "function": {"name": "bash", "description": "Runs.", "parameters": SCHEMA}}],
        "messages": [
            {"role": "system", "content": "You are an agent."},
            {"role": "user", "content": [{"type": "text", "text": "Do it.", **CACHED}]},
            {"role": "assistant", "content": None, "reasoning_content": "Look.", "reasoning_details": [
                {"type": "reasoning.encrypted", "id": "r", "format": "x", "index": 0, "data": "gAA="}],
             "tool_calls": [{"id": "c1", "index": 0, "type": "function", "function": {
                "name": "bash", "arguments": '{"file_id": 1}'},
                "extra_content": {"google": {"thought_signature": "gAA="}}}]},
            {"role": "tool", "tool_call_id": "c1", "name": "bash", "content": "a.py"}]}),
    "Gemini CLI": ("google", {
        "generationConfig": {"temperature": 1, "topP": 0.95, "topK": 64,
                             "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "HIGH"}},
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["list_directory"]}},
        "systemInstruction": {"role": "user", "parts": [{"text": "You are an agent."}]},
        "tools": [{"functionDeclarations": [
            {"name": "list_directory", "description": "Lists.", "parametersJsonSchema": SCHEMA},
            {"name": "mcp_ava_submit_result", "description": "Hands over.", "parametersJsonSchema": SCHEMA}]}],
        "contents": [
            {"role": "user", "parts": [{"text": "<session_context>x</session_context>"}, {"text": "Do it."}]},
            {"role": "model", "parts": [
                {"text": "Look.", "thought": True},
                {"functionCall": {"id": "c1", "name": "list_directory", "args": {"file_id": 1, "inlineData": {}}},
                 "thoughtSignature": "gAA="},
                {"text": "", "thoughtSignature": "gAA="}]},
            {"role": "user", "parts": [{"functionResponse": {
                "id": "c1", "name": "list_directory", "response": {"output": "a.py", "fileData": 1}}}]}]}),
}  # fmt: skip
"""As these agents send them, shortened: every field of theirs, and some in which they choose the form."""


@pytest.mark.parametrize("agent", SESSIONS)
def test_a_session_of_a_known_agent_passes_whole(agent: str) -> None:
    wire, session = SESSIONS[agent]
    call = read(wire, **session)
    assert call.dropped == ()
    assert {name: call.body[name] for name in session} == session


LATER: list[tuple[str, dict[str, Any]]] = [
    ("messages", {"messages": [
        {"role": "user", "content": [
            {"type": "search_result", "source": "https://a.example", "title": "A", "citations": {"enabled": True},
             "content": [{"type": "text", "text": "Twelve cents."}], **CACHED},
            {"type": "tool_result", "tool_use_id": "t", "content": [
                {"type": "search_result", "source": "b", "title": "B", "content": [{"type": "text", "text": "x"}]}]}]},
        {"role": "assistant", "content": [
            {"type": "compaction", "content": "Read so far.", "encrypted_content": "gAA="},
            {"type": "fallback", "from": {"model": "claude-a"}, "to": {"model": "claude-b"},
             "trigger": {"type": "refusal", "category": "x"}}]},
        {"role": "system", "content": [
            {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {
                "name": "Late", "description": "Comes late.", "input_schema": SCHEMA}}}]}]}),
    ("responses", {
        "tools": [{"type": "function", "name": "exec", "parameters": SCHEMA}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
            {"type": "function", "name": "exec"}, {"type": "custom", "name": "late"}]},
        "input": [
            {"type": "additional_tools", "id": "at", "role": "developer", "tools": [
                {"type": "custom", "name": "late", "description": "x", "format": {"type": "text"}}]},
            {"type": "compaction", "id": "cmp", "encrypted_content": "gAA="},
            {"type": "message", "role": "user", "content": "Go on."}]}),
    ("chat_completions", {
        "tools": [{"type": "function", "function": {"name": "bash", "parameters": SCHEMA}}],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
            {"type": "function", "function": {"name": "bash"}}]}}}),
]  # fmt: skip
"""What long sessions of agents have: tools that come later, searches of their own, and what was compacted."""


@pytest.mark.parametrize(("wire", "session"), LATER)
def test_what_long_sessions_have_passes_whole(wire: str, session: dict[str, Any]) -> None:
    call = read(wire, **session)
    assert call.dropped == ()
    assert {name: call.body[name] for name in session} == session


def test_tools_that_come_later_are_closed_as_those_that_come_first() -> None:
    bodies = Bodies("responses", {"sonnet": "far-sonnet"}, frozenset({"off"}), Redactor({}))
    late = [
        {"type": "function", "name": "off", "parameters": {}},
        {"type": "web_search"},
        {"type": "function", "name": "late", "parameters": {}, "mode": "pro"},
    ]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "off"}]}
    body = {
        **agent_request("responses"),
        "model": "sonnet",
        "tool_choice": choice,
        "input": [
            {"type": "additional_tools", "role": "developer", "tools": late},
            {"type": "additional_tools", "role": "developer", "tools": late[:2]},
            {"type": "compaction", "id": "stored"},
        ],
    }
    call = bodies.read(json.dumps(body).encode())
    kept = {"type": "function", "name": "late", "parameters": {}}
    assert call.body["input"] == [{"type": "additional_tools", "role": "developer", "tools": [kept]}]
    assert "tool_choice" not in call.body
    assert {"tool off", "tool web_search", "tools.mode", "tool_choice"} <= set(call.dropped)
    with pytest.raises(CallRefused, match="cannot be sent"):
        bodies.read(json.dumps({**body, "input": [{"type": "additional_tools", "tools": [{"type": "new"}]}]}).encode())


@pytest.mark.parametrize(
    ("kind", "tool", "sentence"),
    [
        ("tool_addition", {"type": "tool_reference", "name": "Lazy"}, "[The tool Lazy can be called.]"),
        ("tool_removal", {"type": "tool_reference", "name": "Lazy"}, "[The tool Lazy cannot be called.]"),
        ("tool_addition", {"type": "tool_reference", "name": "Off"}, "[The tool Off cannot be called.]"),
        ("tool_addition", {"type": "mcp_toolset_reference", "server_name": "far"}, "[The tool far cannot be called.]"),
        (
            "tool_addition",
            {"type": "tool_definition", "definition": {"type": "web_search_20250305", "name": "web_search"}},
            "[The tool web_search cannot be called.]",
        ),
    ],
)
def test_a_tool_that_comes_or_goes_is_told_in_a_sentence(kind: str, tool: dict[str, Any], sentence: str) -> None:
    bodies = Bodies("messages", {"sonnet": "far-sonnet"}, frozenset({"Off"}), Redactor({}))
    asked = {**agent_request("messages"), "model": "sonnet", **user({"type": kind, "tool": tool})}
    call = bodies.read(json.dumps(asked).encode())
    assert call.body["messages"][0]["content"] == [{"type": "text", "text": sentence}]
    assert any(name.startswith(kind) for name in call.dropped)


@pytest.mark.parametrize("response", [{"output": "a picture"}, None])
def test_a_picture_beside_googles_result_becomes_a_sentence_in_it(response: Any) -> None:
    result = {"name": "look", "response": response, "parts": [{"inlineData": {"mimeType": "image/png", "data": "aa"}}]}
    call = read("google", contents=[{"role": "user", "parts": [{"functionResponse": result}]}])
    (part,) = call.body["contents"][0]["parts"]
    sent = part["functionResponse"]
    assert "parts" not in sent and "Ava has taken out inlineData" in sent["response"]["ava"]
    assert {name: value for name, value in sent["response"].items() if name != "ava"} == (response or {})
    assert call.dropped == ("inlineData",)


@pytest.mark.parametrize(
    ("budget", "output", "left"),
    [(10**9, 4_000, 2_000), (10**9, 500, None), (-1, 4_000, 2_000), ("many", 4_000, 2_000), (1_500, 4_000, 1_500)],
)
def test_a_budget_for_reasoning_leaves_room_for_the_answer(budget: Any, output: int, left: int | None) -> None:
    bodies = Bodies("chat_completions", {"sonnet": "far-sonnet"}, frozenset(), Redactor({}))
    asked = {**agent_request("chat_completions"), "model": "sonnet", "reasoning": {"max_tokens": budget}}
    body = bodies.limited(bodies.read(json.dumps(asked).encode()), output)
    assert body["reasoning"] == ({} if left is None else {"max_tokens": left})


OUT: list[tuple[str, dict[str, Any], str]] = [
    ("messages", {"thinking": {"type": "enabled", "budget_tokens": 2_000, "mode": "pro"}}, "thinking.mode"),
    ("messages", {"thinking": {"type": "pro", "budget_tokens": 2_000}}, "thinking"),
    ("messages", {"thinking": {"type": "adaptive", "display": {"prompt": "pro"}}}, "thinking.display"),
    ("messages", {"output_config": {"effort": "pro"}}, "output_config.effort"),
    ("messages", {"output_config": {"task_budget": {"total": 9}}}, "output_config.task_budget"),
    ("messages", {"output_config": {"format": {"type": "pro"}}}, "output_config.format"),
    ("messages", {"tool_choice": {"type": "any", "mode": "pro"}}, "tool_choice.mode"),
    ("messages", {"tools": [{"name": "Read", "input_schema": {}, "mode": "pro"}]}, "tools.mode"),
    ("messages", {"tools": [{"name": "Read", "input_schema": {}, "input_examples": [
        {"a": {"type": "image", "source": {"type": "url", "url": "pro"}}}]}]}, "tools.input_examples"),
    ("messages", {"tools": [{"name": "Read", "input_schema": {}, "defer_loading": "pro"}]}, "tools.defer_loading"),
    ("messages", {"system": [{"type": "text", "text": "x", "mode": "pro"}]}, "system.mode"),
    ("messages", {"system": [{"type": "image", "source": {"type": "file", "file_id": "pro"}}]}, "image"),
    ("messages", {"messages": [{"role": "user", "content": "x", "mode": "pro"}]}, "messages.mode"),
    ("messages", user({"type": "text", "text": "x", "citations": [{"url": "pro"}]}), "messages.content.citations"),
    ("messages", user({"type": "tool_result", "tool_use_id": "t", "content": "x", "mode": "pro"}),
     "messages.content.mode"),
    ("messages", user({"type": "tool_result", "tool_use_id": "t", "content": [
        {"type": "tool_reference", "tool_name": "Read", "mode": "pro"}]}), "tool_reference"),
    ("responses", {"reasoning": {"effort": "low", "mode": "pro"}}, "reasoning.mode"),
    ("responses", {"reasoning": {"context": "pro"}}, "reasoning.context"),
    ("responses", {"reasoning": {"effort": ["pro"]}}, "reasoning.effort"),
    ("responses", {"reasoning": "pro"}, "reasoning"),
    ("responses", {"text": {"verbosity": "pro"}}, "text.verbosity"),
    ("responses", {"text": {"mode": "pro"}}, "text.mode"),
    ("responses", {"text": {"format": {"type": "text", "mode": "pro"}}}, "text.format.mode"),
    ("responses", {"tool_choice": {"type": "function", "name": "Read", "mode": "pro"}}, "tool_choice.mode"),
    ("responses", {"tool_choice": {"type": "web_search", "mode": "pro"}}, "tool_choice"),
    ("responses", {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice"),
    ("responses", {"truncation": {"type": "pro"}}, "truncation"),
    ("responses", {"tools": [{"type": "function", "name": "Read", "parameters": {}, "mode": "pro"}]}, "tools.mode"),
    ("responses", {"tools": [{"type": "namespace", "name": "n", "mode": "pro", "tools": [
        {"type": "function", "name": "Read", "parameters": {}}]}]}, "tools.mode"),
    ("responses", {"tools": [{"type": "namespace", "name": "n", "tools": [
        {"type": "function", "name": "Read", "parameters": {}, "mode": "pro"}]}]}, "tools.mode"),
    ("responses", {"input": [{"type": "message", "role": "user", "content": "x", "mode": "pro"}]}, "input.mode"),
    ("responses", {"input": [{"type": "reasoning", "id": "pro"}]}, "input: a reasoning without content"),
    ("responses", {"input": [{"type": "reasoning", "id": "pro", "summary": []}]}, "input: a reasoning without content"),
    ("responses", {"input": [{"type": "message", "role": "user", "id": "pro"}]}, "input: a message without content"),
    ("responses", {"input": [{"role": "assistant", "content": [
        {"type": "output_text", "text": "x", "annotations": [{"file": "pro"}]}]}]}, "input.content.annotations"),
    ("chat_completions", {"reasoning": {"effort": "low", "mode": "pro"}}, "reasoning.mode"),
    ("chat_completions", {"reasoning_effort": "pro"}, "reasoning_effort"),
    ("chat_completions", {"tool_choice": {"type": "pro"}}, "tool_choice"),
    ("chat_completions", {"response_format": {"type": "text", "mode": "pro"}}, "response_format.mode"),
    ("chat_completions", {"tools": [{"type": "function", "function": {"name": "Read", "mode": "pro"}}]},
     "tools.function.mode"),
    ("chat_completions", {"messages": [{"role": "user", "content": "x", "mode": "pro"}]}, "messages.mode"),
    ("chat_completions", {"messages": [{"role": "assistant", "tool_calls": [
        {"id": "c", "type": "function", "mode": "pro", "function": {"name": "R", "arguments": "{}"}}]}]},
     "messages.tool_calls.mode"),
    ("google", {"generationConfig": {"thinkingConfig": {"thinkingLevel": "pro"}}},
     "generationConfig.thinkingConfig.thinkingLevel"),
    ("google", {"generationConfig": {"responseModalities": ["pro"]}}, "generationConfig.responseModalities"),
    ("google", {"generationConfig": {"speechConfig": {"x": "pro"}}}, "generationConfig.speechConfig"),
    ("google", {"generation_config": {"image_config": "pro"}}, "generationConfig.image_config"),
    ("google", {"serviceTier": "pro"}, "serviceTier"),
    ("google", {"toolConfig": {"functionCallingConfig": {"mode": "pro"}}}, "toolConfig.functionCallingConfig.mode"),
    ("google", {"tools": [{"googleSearch": {"mode": "pro"}}]}, "tool googleSearch"),
    ("google", {"tools": [{"mcp_servers": [{"url": "pro"}]}]}, "tool mcpServers"),
    ("google", {"tools": [{"functionDeclarations": [{"name": "Read", "behavior": "pro"}]}]}, "tools.behavior"),
    ("google", {"contents": [{"role": "user", "mode": "pro", "parts": [{"text": "x"}]}]}, "contents.mode"),
    ("google", {"contents": [{"role": "user", "parts": [{"inlineData": {"data": "pro"}}]}]}, "inlineData"),
    ("google", {"contents": [{"role": "user", "parts": [{"file_data": {"fileUri": "pro"}, "text": "pro"}]}]},
     "fileData"),
    ("google", {"contents": [{"role": "user", "parts": [{"functionResponse": {
        "name": "x", "response": {}, "parts": [{"inlineData": {"data": "pro"}}]}}]}]},
     "inlineData"),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "more", "name"), OUT)
def test_what_the_table_does_not_have_is_taken_out_and_named(wire: str, more: dict[str, Any], name: str) -> None:
    call = read(wire, **more)
    assert call.dropped == (name,)
    assert b"pro" not in call.head.replace(b'"properties"', b"") and not any(b"pro" in item for item in call.items)
    assert '"pro"' not in json.dumps(call.body)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("messages", {"system": [{"type": "search_result", "content": "x"}]}, "search_result"),
    ("messages", {"system": [{"text": "x"}]}, "without a type"),
    ("messages", {"system": [{"type": "text", "text": "x", "file_id": "f"}]}, "file_id"),
    ("messages", {"tools": [{"type": "made_up_20270101", "name": "x"}]}, "made_up"),
    ("messages", {"tools": [{"type": ["custom"], "name": "x"}]}, "custom"),
    ("messages", {"tools": [{"name": "x", "source": {"type": "url"}}]}, "source"),
    ("messages", user({"type": "tool_use", "id": "t", "name": "x", "input": {}, "caller": {"type": "code_execution"}}),
     "code_execution"),
    ("messages", user({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "made_up"}]}),
     "made_up"),
    ("messages", user({"type": "tool_result", "tool_use_id": "t", "content": {"type": "made_up", "file_id": "f"}}),
     "made_up"),
    ("messages", {"messages": ["x"]}, "a str"),
    ("responses", {"instructions": [{"type": "input_text", "file_id": "f"}]}, "input_text"),
    ("responses", {"input": [{"type": "made_up", "content": "x"}]}, "made_up"),
    ("responses", {"input": [{"type": "reasoning", "content": [{"type": "made_up"}]}]}, "made_up"),
    ("responses", {"tools": [{"type": "made_up"}]}, "made_up"),
    ("responses", {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "made_up"}]}]}, "made_up"),
    ("chat_completions", {"tools": [{"type": "made_up"}]}, "made_up"),
    ("chat_completions", {"messages": [{"role": "assistant", "tool_calls": [{"type": "made_up"}]}]}, "made_up"),
    ("chat_completions", {"messages": [{"role": "user", "content": "x", "audio": {"id": "a"}}]}, "audio"),
    ("google", {"tools": [{"madeUp": {}}]}, "madeUp"),
    ("google", {"contents": [{"role": "user", "parts": [{"executableCode": {"code": "x"}}]}]}, "executableCode"),
    ("google", {"contents": [{"role": "user", "parts": [{"code_execution_result": {"output": "x"}}]}]},
     "code_execution_result"),
    ("google", {"contents": [{"role": "user", "parts": [{"text": "x", "madeUp": 1}]}]}, "madeUp"),
    ("google", {"contents": [{"role": "user", "parts": ["x"]}]}, "a str"),
    ("google", {"contents": ["x"]}, "a str"),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "more", "said"), REFUSED)
def test_an_unknown_kind_of_content_item_or_tool_is_refused(wire: str, more: dict[str, Any], said: str) -> None:
    with pytest.raises(CallRefused, match=said) as refused:
        read(wire, **more)
    assert refused.value.reason == "form"


SEALED: list[tuple[str, dict[str, Any]]] = [
    ("messages", {"messages": [{"role": "assistant", "content": [{"type": "thinking", "signature": PLANTED}]}]}),
    ("messages", {"messages": [{"role": "assistant", "content": [
        {"type": "thinking", "thinking": f"The key is {PLANTED}.", "signature": "EqQB"}]}]}),
    ("messages", {"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": PLANTED}]}]}),
    ("responses", {"input": [{"type": "reasoning", "summary": [], "encrypted_content": PLANTED}]}),
    ("chat_completions", {"messages": [{"role": "assistant", "reasoning_details": [
        {"type": "reasoning.encrypted", "data": PLANTED}]}]}),
    ("chat_completions", {"messages": [{"role": "assistant", "extra_content": {
        "google": {"thought_signature": PLANTED}}}]}),
    ("google", {"contents": [{"role": "model", "parts": [{"text": "x", "thoughtSignature": PLANTED}]}]}),
    ("google", {"contents": [{"role": "model", "parts": [{"text": "x", "thought_signature": PLANTED}]}]}),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "more"), SEALED)
def test_a_secret_in_what_a_provider_has_sealed_or_signed_is_not_sent(wire: str, more: dict[str, Any]) -> None:
    """Replaced, it would break the seal: the provider would refuse the call, again and again."""
    with pytest.raises(CallRefused, match="earlier thinking") as refused:
        read(wire, **more)
    assert PLANTED not in str(refused.value)


def test_a_secret_in_thinking_that_nobody_has_signed_is_replaced() -> None:
    said = {"role": "assistant", "content": [{"type": "thinking", "thinking": f"The key is {PLANTED}."}]}
    (item,) = read("messages", messages=[said]).items
    assert b"[redacted:" in item and PLANTED.encode() not in item


def test_new_names_of_one_request_are_bounded() -> None:
    call = read("messages", tools=[{"name": "Read", **{f"new {number}": 1 for number in range(10_000)}}])
    assert len(call.dropped) == MOST_TAKEN


def shapes(shape: Shape) -> list[Shape]:
    match shape:
        case Fields(known) | Kinds(known) | GooglePart(known):
            inner = list(known.values())
        case Listed(of):
            inner = [of]
        case Content(parts):
            inner = [parts]
        case FormChoice(words, objects):
            inner = [words, objects]
        case _:
            inner = []
    return [shape, *(each for one in inner for each in shapes(one))]


def test_only_schemas_and_arguments_are_left_to_the_agent() -> None:
    free: set[str] = set()
    for form in FORMS.values():
        for shape in [each for one in (*form.fields.values(), form.tools) for each in shapes(one)]:
            if isinstance(shape, Fields):
                free |= {name for name, inner in shape.known.items() if inner is Leaf.FREE}
        assert form.items in form.fields and set(form.head) <= {*form.fields, "tools"} and form.output
    own = {"input", "input_schema", "parameters", "arguments", "schema", "tools"}  # `tools` of a namespace
    assert free == own | {"args", "response", "parametersJsonSchema", "responseSchema", "responseJsonSchema"}


def test_a_model_that_gemini_cli_asks_on_the_side_is_the_runs_and_another_is_refused(tmp_path: Path) -> None:
    spec = agents_of(load_settings(tmp_path, {}))["gemini"]
    models = answered_models(spec, "gemini-3.8-flash", "google:gemini-3.8-flash")
    bodies = Bodies("google", models, frozenset(spec.off), Redactor({}))
    for asked in ("gemini-3.8-flash", "gemini-2.5-flash-lite", "gemini-3-flash-preview"):
        call = bodies.read(json.dumps(agent_request("google")).encode(), in_address={"model": asked, "stream": False})
        assert call.body["model"] == "gemini-3.8-flash"
    with pytest.raises(CallRefused, match=r"'gemini-3\.1-pro-preview' was not approved.*approved: gemini-3\.8-flash"):
        bodies.read(json.dumps(agent_request("google")).encode(), in_address={"model": "gemini-3.1-pro-preview"})


def test_each_wire_has_its_form_and_its_names_for_agents() -> None:
    assert FORMS.keys() == API_TYPES.keys() == PACKAGES.keys() == {*get_args(RemoteWire)}


BETAS = {
    "claude-code-20250219,effort-2025-11-24": "claude-code-20250219,effort-2025-11-24",
    "effort-1 context-1m-2025-08-07": "",
    "effort-2025-11-24 context-1m-2025-08-07": "",
    "effort-2025-11-24;context-1m-2025-08-07,interleaved-thinking-2025-05-14": "interleaved-thinking-2025-05-14",
    "claude-code-20250219-context-1m": "",
    "effort-": "",
}


@pytest.mark.parametrize("given", BETAS)
async def test_a_beta_feature_is_compared_whole(tmp_path: Path, given: str) -> None:
    async with open_gateway(tmp_path, [Say("ok")]) as at:
        assert (await at.ask(agent_request("messages"), **{"anthropic-beta": given})).status_code == 200
        assert at.far.requests[0].headers.get("anthropic-beta", "") == BETAS[given]
        left_out = [f"anthropic-beta {name}" for name in given.split(",") if name not in BETAS[given].split(",")]
        assert list(at.meter.admitted[0].dropped) == left_out


async def test_what_is_taken_out_is_logged_once_for_a_run(tmp_path: Path) -> None:
    system = [{"type": "text", "text": "You are the scripted agent.", "mode": "pro"}]
    more = [{"type": "text", "text": "You are the scripted agent.", "mode": "pro", "speed": "fast"}]
    asks = [{"ask": "one", "system": system}, {"ask": "two", "system": system}, {"ask": "three", "system": more}]
    answers = [Say("Done.", usage=USAGE)] * 3
    async with agent_lab(tmp_path, answers, [[*asks, {"say": "Done."}]]) as lab:
        run_id = await lab.start(**agent_run())
        assert (await lab.ended(run_id)).state == "success"
        dropped = [each.dropped for each in await lab.facts(run_id, AgentRequest)]
    assert dropped == [("system.mode",), (), ("system.speed",)]


async def test_a_beta_feature_that_is_left_out_is_logged_once_for_a_run(tmp_path: Path) -> None:
    one, two = "effort-2025-11-24,context-1m-2025-08-07", "context-1m-2025-08-07,fast-mode-2026-02-01"
    asks = [{"ask": f"number {number}", "betas": betas} for number, betas in enumerate((one, one, two))]
    answers = [Say("Done.", usage=USAGE)] * 3
    async with agent_lab(tmp_path, answers, [[*asks, {"say": "Done."}]]) as lab:
        run_id = await lab.start(**agent_run())
        assert (await lab.ended(run_id)).state == "success"
        dropped = [each.dropped for each in await lab.facts(run_id, AgentRequest)]
    assert dropped == [("anthropic-beta context-1m-2025-08-07",), (), ("anthropic-beta fast-mode-2026-02-01",)]
