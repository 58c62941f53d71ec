"""langgraph: its prebuilt agent with one tool, without a checkpointer."""

from __future__ import annotations

import warnings
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent

from loop_parts.child import DESCRIPTION, SYSTEM, TASK, Tasks, noted, serve

NOTES: ContextVar[list[str]] = ContextVar("notes")


@tool(description=DESCRIPTION)
async def scratchpad(note: str) -> str:
    return noted(NOTES.get(), note)


@asynccontextmanager
async def langgraph(url: str) -> AsyncGenerator[Tasks]:
    model = ChatOpenAI(model="test", base_url=url, api_key="none")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agent = create_react_agent(model, [scratchpad], prompt=SYSTEM)

    async def run() -> None:
        NOTES.set([])
        await agent.ainvoke({"messages": [("user", TASK)]}, {"recursion_limit": 100})

    yield Tasks(run)


if __name__ == "__main__":
    serve(langgraph)
