"""openai-agents: an agent with one tool, over chat completions, without tracing."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from agents import Agent, OpenAIChatCompletionsModel, RunContextWrapper, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

from loop_parts.child import DESCRIPTION, SYSTEM, TASK, Tasks, noted, serve


@function_tool(description_override=DESCRIPTION)
async def scratchpad(context: RunContextWrapper[list[str]], note: str) -> str:
    return noted(context.context, note)


@asynccontextmanager
async def openai_agents(url: str) -> AsyncGenerator[Tasks]:
    set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=url, api_key="none") as client:
        model = OpenAIChatCompletionsModel(model="test", openai_client=client)
        agent = Agent[list[str]](name="bench", instructions=SYSTEM, model=model, tools=[scratchpad])
        yield Tasks(lambda: Runner.run(agent, TASK, context=[], max_turns=100))


if __name__ == "__main__":
    serve(openai_agents)
