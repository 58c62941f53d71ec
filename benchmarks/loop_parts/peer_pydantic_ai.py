"""pydantic-ai: an agent with one tool."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from pydantic_ai import Agent, RunContext, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from loop_parts.child import DESCRIPTION, SYSTEM, TASK, Tasks, noted, serve


@asynccontextmanager
async def pydantic_ai(url: str) -> AsyncGenerator[Tasks]:
    model = OpenAIChatModel("test", provider=OpenAIProvider(base_url=url, api_key="none"))
    agent = Agent(model, deps_type=list[str], system_prompt=SYSTEM)

    @agent.tool(description=DESCRIPTION)
    async def scratchpad(context: RunContext[list[str]], note: str) -> str:
        return noted(context.deps, note)

    yield Tasks(lambda: agent.run(TASK, deps=[], usage_limits=UsageLimits(request_limit=None)))


if __name__ == "__main__":
    serve(pydantic_ai)
