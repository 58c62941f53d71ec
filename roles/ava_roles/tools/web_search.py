"""`web_search`: addresses of pages that are worth reading, by the search engine that is set up."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from ava_roles.net.search_engines import MOST_HITS, SearchResults
from ava_roles.tool import Source, ToolArgs, ToolContext, ToolOutput, ToolSpec, need_search

NAME = "web_search"
_WORDS_MOST = 50  # as Brave has it; no search needs more


def _few_words(query: str) -> str:
    words = query.split()
    if not words:
        raise ValueError("only white space was given; give the words to look for")
    if len(words) > _WORDS_MOST:
        raise ValueError(f"a search has at most {_WORDS_MOST} words; leave out all that does not tell pages apart")
    return " ".join(words)


class WebSearchArgs(ToolArgs):
    """Arguments of `web_search`."""

    query: Annotated[str, AfterValidator(_few_words)] = Field(
        min_length=1, max_length=400, description="A few words that the pages would contain."
    )
    count: int = Field(default=8, ge=1, le=MOST_HITS, description="Results at most.")


class WebSearch:
    """Searches the web."""

    spec = ToolSpec(
        name=NAME,
        description=(
            "Search the web: a numbered list of pages with title, address, date where known, and a few of their words."
            " Read the best ones with read_webpages before you rely on them."
        ),
        args=WebSearchArgs,
        timeout_s=30,
        network=True,
        search=True,
        default=True,
        aliases=("WebSearch",),
    )

    def activity(self, args: WebSearchArgs) -> str:
        """Return `Searching the web for WORDS`."""
        return f"Searching the web for {args.query}"

    async def __call__(self, args: WebSearchArgs, at: ToolContext) -> ToolOutput:
        """Search."""
        found = await need_search(at)(args.query, args.count)
        return ToolOutput(
            _listed(found),
            count=len(found.hits),
            sources=tuple(Source(hit.url, hit.title or None) for hit in found.hits),
        )


def _listed(found: SearchResults) -> str:
    """Return the hits as the model is shown them. The query is not repeated: its words are no page's."""
    count = len(found.hits)
    head = f"{found.engine}: {'no results' if not count else '1 result' if count == 1 else f'{count} results'}"
    if found.note:
        head += f"\nNote: {found.note}"
    if not count:
        return f"{head}\nTry other words, or fewer."
    entries: list[str] = []
    for number, hit in enumerate(found.hits, 1):
        lines = [f"{number}. {hit.title or '(no title)'}", hit.url, hit.date, hit.snippet]
        entries.append("\n   ".join(line for line in lines if line))
    return "\n\n".join([head, *entries])
