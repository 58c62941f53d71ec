"""The parts of a configuration: what a run may use and change, and what it is likely to cost."""

# No `from __future__ import annotations`: pydantic would compile each of the fields' annotations again at every start.

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, PlainSerializer

from ava_roles.mcp_client.server_tools import OfferedTool
from ava_server.models.prices import Price

if TYPE_CHECKING:
    from ava_server.models.model_choice import ProviderSearch


StoredPrice = Annotated[Price, PlainSerializer(asdict, return_type=dict[str, Any])]
"""A price with its nulls, in the log too."""


class EarlierRun(BaseModel, frozen=True, extra="ignore"):
    """An ended run whose result may be read; nothing that it wrote."""

    id: str
    role: str
    ending: str


class ForeignDefinition(BaseModel, frozen=True, extra="ignore"):
    """A tool of an MCP server as it was approved, by its server's name for it, and what its server says of it."""

    tool: str
    description: str
    parameters: dict[str, Any]
    changes: bool  # it can change things
    destroys: bool = False  # it can destroy something
    idempotent: bool = False  # an equal call again changes nothing more

    def offered(self, name: str) -> OfferedTool:
        """Return the tool in the form in which a server offers it, to compare the two."""
        return OfferedTool(
            name, self.tool, self.description, self.parameters, self.changes, self.destroys, self.idempotent
        )


class ForeignUse(BaseModel, frozen=True, extra="ignore"):
    """What a run uses of one MCP server, as it was approved."""

    digest: str  # the hash of the server's configuration
    where: str
    network: bool = False  # its program may use this machine's network
    remote: bool = False  # it has an address and runs elsewhere
    read_write: tuple[str, ...] = ()  # folders that its program may write to
    tools: dict[str, ForeignDefinition] = {}  # those of its tools that the run has, by full name


class StoredFile(BaseModel, frozen=True, extra="ignore"):
    """A file beside the log, in its database: its SHA-256, and its number of bytes."""

    sha256: str
    size: int


class SkillUse(BaseModel, frozen=True, extra="ignore"):
    """A skill that a run may read, as it was approved; `sha256` is of all its files."""

    name: str
    description: str
    sha256: str
    files: int
    size: int  # in bytes


class ProjectFileSize(BaseModel, frozen=True, extra="ignore"):
    """A file that says how to work in the project; `size` is that of the whole file, in bytes."""

    path: str
    size: int
    is_cut: bool = False  # the run gets only its beginning


class Coding(BaseModel, frozen=True, extra="ignore"):
    """What a run may change in a repository, and the command that decides whether its work passes."""

    repository: str  # the root of the user's checkout
    branch: str | None = None  # the branch that is checked out there; None for a detached HEAD
    base: str  # the commit at which the work starts
    identity: tuple[str, ...]  # the repository's `UserRepository.identity`
    uncommitted: int = 0  # how many files of the checkout have uncommitted changes, which the work does not include
    # The files and folders that may be changed, relative to the repository's root; `.` is all of it.
    namespace: tuple[str, ...]
    verify: str  # the command line that decides
    verify_from: str  # where it comes from, as text
    setup: str | None = None  # the command line that prepares a worktree
    notes: tuple[str, ...] = ()  # other facts about the repository, in sentences
    # The commit at which the work starts, for other machines; None where it does not travel.
    snapshot: StoredFile | None = None


class SearchCall(BaseModel, frozen=True, extra="ignore"):
    """The model call that one web search makes, where a model provider searches."""

    model: str
    base_url: str
    price: StoredPrice  # what the call costs, the fee of the search included
    fee: int  # the fee of one search, in nano-USD
    prompt_tokens: int  # what is reserved for the request and its results
    output_tokens: int  # the limit of the answer
    results: int  # the most results of one search
    key_command: tuple[str, ...] = ()  # the command that prints the key; empty where none does

    @staticmethod
    def of(search: "ProviderSearch", key_command: tuple[str, ...]) -> "SearchCall":
        terms = search.terms
        return SearchCall(
            model=search.choice.name,
            base_url=search.choice.base_url or "",
            price=search.price,
            fee=terms.fee,
            prompt_tokens=terms.prompt_tokens,
            output_tokens=terms.output_tokens,
            results=terms.results,
            key_command=key_command,
        )


class Estimate(BaseModel, frozen=True, extra="ignore"):
    """What similar runs of the user took, when the run was proposed; see `approval/estimates.py`.

    A value is None where it is the proposal's own cap, or where nothing costs anything.
    """

    runs: int  # how many similar runs there were
    group: Literal["size", "model", "role"]  # the narrowest that they have in common
    left_out: int = 0  # similar runs whose cost at today's prices is not known
    half_micros: int | None = None  # half of them cost less
    most_micros: int | None = None  # nine in ten are likely to cost no more; of fewer than nine runs, the highest
    half_us: int | None = None  # the same of their time
    most_us: int | None = None

    @property
    def bounded(self) -> bool:
        """Whether there were enough runs for a bound of nine in ten."""
        return self.runs >= 9
