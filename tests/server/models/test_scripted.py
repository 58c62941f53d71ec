import anyio
import pytest

from ava_server.core.errors import ModelError
from ava_server.models.base import AssistantTurn, Completion, Model, Request, ToolTurn, Turn, UserTurn
from ava_server.models.factory import model_of
from ava_server.models.http_clients import ClientPool

FOUND = "1 files fit best (3 searched)\n## harbour.md\n\nline 3:\nThe pier of the harbour is old.\n"


def scripted() -> Model:
    return model_of("scripted:demo", {"wire": "scripted"}, None, ClientPool())


async def ask(*turns: Turn) -> Completion:
    with anyio.fail_after(20):
        async with scripted().stream(Request("demo", "", (), (UserTurn("Old piers"), *turns), 100)) as stream:
            deltas = [delta.text async for delta in stream]
        assert "".join(deltas) == stream.completion.text
        return stream.completion


async def test_each_turn_gets_its_own_step_filled_in_with_what_was_found() -> None:
    first = await ask()
    assert [(call.name, call.args) for call in first.calls] == [("search_and_read", {"query": "old piers"})]
    turns = AssistantTurn(first.raw), ToolTurn(first.calls[0].call_id, "search_and_read", FOUND)
    second = await ask(*turns)
    assert second.text.startswith("harbour.md looks best.")
    third = await ask(*turns, AssistantTurn(second.raw))
    (submitted,) = third.calls
    assert submitted.args is not None
    assert [finding["quote"] for finding in submitted.args["findings"]] == ["The pier of the harbour is old."]
    assert len({call.call_id for answer in (first, second, third) for call in answer.calls}) == 3


async def test_a_task_with_quotes_and_placeholders_is_only_text() -> None:
    with anyio.fail_after(20):
        asked = Request("demo", "", (), (UserTurn('"{findings}" \\ {words}'),), 100)
        async with scripted().stream(asked) as stream:
            assert stream.completion.calls[0].args == {"query": "findings words"}


async def test_an_exhausted_script_says_so() -> None:
    answered = AssistantTurn({"role": "assistant", "content": "one"})
    with pytest.raises(ModelError, match="has 3 steps and was asked for step 4"):
        await ask(answered, answered, answered)
