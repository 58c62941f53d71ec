import anyio
import pytest

from ava_audit.events import Usage
from ava_server.core.errors import ModelError
from ava_server.models.base import AssistantTurn, Completion, Request, ToolTurn, Turn, UserTurn
from ava_server.models.factory import Call, ScriptedModel, Step

BUSY = ModelError("busy", kind="overloaded", sent=True, answered=False, retryable=True)


async def ask(model: ScriptedModel, *turns: Turn) -> Completion:
    with anyio.fail_after(5):
        async with model.stream(Request("demo", "", (), (UserTurn("go"), *turns), 100)) as stream:
            async for _ in stream:
                pass
        return stream.completion


async def test_each_turn_gets_its_own_step() -> None:
    model = ScriptedModel(
        [
            Step("first", (Call("search", {"q": "x"}),)),
            lambda request: Step(f"{len(request.turns)} turns so far"),
        ]
    )
    first = await ask(model)
    assert [(call.name, call.args) for call in first.calls] == [("search", {"q": "x"})]
    second = await ask(model, AssistantTurn(first.raw), ToolTurn(first.calls[0].call_id, "search", "y"))
    assert second.text == "3 turns so far"
    assert second.stop_reason == "stop"
    assert len(model.requests) == 2


async def test_another_process_continues_where_the_history_ends() -> None:
    script = [Step("one"), Step("two")]
    first = await ask(ScriptedModel(script))
    assert (await ask(ScriptedModel(script), AssistantTurn(first.raw))).text == "two"


async def test_the_attempts_of_one_turn_run_in_order() -> None:
    model = ScriptedModel([[Step(error=BUSY), Step("at last", cost_micros=7, usage=Usage(output_tokens=3))]])
    with pytest.raises(ModelError, match="busy"):
        await ask(model)
    completion = await ask(model)
    assert (completion.text, completion.cost_micros, completion.usage) == (
        "at last",
        7,
        Usage(output_tokens=3),
    )
    assert (await ask(model)).text == "at last"


async def test_an_exhausted_script_says_so() -> None:
    with pytest.raises(ModelError, match="has 1 steps and was asked for step 2"):
        await ask(ScriptedModel([Step("one")]), AssistantTurn({"role": "assistant", "content": "one"}))


async def test_a_step_can_wait_to_be_released_or_cancelled() -> None:
    reached, release = anyio.Event(), anyio.Event()
    model = ScriptedModel([Step("later", reached=reached, until=release)])
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, model)
            await reached.wait()
            tasks.cancel_scope.cancel()
        release.set()
        assert (await ask(model)).text == "later"


async def test_sends_a_malformed_call_unchanged() -> None:
    completion = await ask(ScriptedModel([Step(calls=(Call("search", raw="{oops"),))]))
    assert (completion.calls[0].args, completion.calls[0].raw_args) == (None, "{oops")
