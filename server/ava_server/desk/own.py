"""What every tool of the desk stands on: the house, the session, and only what belongs to its user."""

from __future__ import annotations

from ava_audit.events import Who
from ava_audit.rows import RunRow
from ava_server.errors import AvaError, BadInput, Refused
from ava_server.house import House
from ava_server.ids import AGENT, parse_id
from ava_server.session import Session


class Own:
    """The runs and groups of a session's user; another user's do not exist for it.

    Attributes:
        house: What this process has open.
        session: Whom the desk serves.
    """

    def __init__(self, house: House, session: Session) -> None:
        self.house = house
        self.session = session
        self.store = house.store

    async def refuse_without_pin(self, why: str) -> None:
        """Refuse what only the approval PIN allows, where it does and this session has not been given it.

        Raises:
            Refused: It does; says `why`.
            ConfigError: Whether it does cannot be told.
        """
        if await self.house.policy() == "human" and not self.session.pin_given:
            raise Refused(why)

    async def run(self, given: str, field: str) -> RunRow:
        """Return a run of this user.

        Raises:
            BadInput: There is none; another user's does not exist for this one.
        """
        if given.strip().lower().startswith("p-"):  # a proposal's id names its run as well
            pending_id = parse_id("pending_id", given, field)
            row = await self.store.read(lambda view: view.proposal(pending_id))
            run_id = row.run_id if row is not None else given
        else:
            run_id = parse_id("subagent_id", given, field)
        run = await self.store.read(lambda view: view.run(run_id))
        if run is None or run.user_id != self.session.user:
            raise BadInput(f"{field}: no subagent {run_id} of yours is known; check_subagent without an id lists them")
        return run

    async def pending_id(self, given: str) -> str:
        """Return the id of a proposal, given that or the id of its run.

        Raises:
            BadInput: It is neither.
        """
        if not given.strip().lower().startswith("s-"):
            return parse_id("pending_id", given)
        return (await self.run(given, "pending_ids")).pending_id

    async def rows(self, run_ids: list[str]) -> list[RunRow]:
        """Return the runs of these ids."""
        rows = await self.store.read(lambda view: [view.run(run_id) for run_id in run_ids])
        return [row for row in rows if row is not None]

    async def group(self, given: str) -> list[RunRow]:
        """Return the runs of a group of this user.

        Raises:
            BadInput: There is none.
        """
        group_id = parse_id("group_id", given)
        rows = await self.store.read(lambda view: view.group_runs(group_id))
        own = [row for row in rows if row.user_id == self.session.user]
        if not own:
            raise BadInput(f"group_id: no group {group_id} of yours is known; confirm_spawn of two or more makes one")
        return own

    def explained(self, error: Exception) -> str:
        """Return an error's text, and where a key would mend it how this host takes one."""
        provider = error.needs_key if isinstance(error, AvaError) else None
        return f"{error} {self.key_advice(provider)}" if provider else str(error)

    def key_advice(self, provider: str) -> str:
        """Return how a person gives this server a provider's key, in the words of this session's host."""
        from ava_server.hosts.advice import key_advice

        return key_advice(provider, self.session.client)

    def agent_of(self, run: RunRow) -> Who:
        """Return a run as the log names it, under this session."""
        return Who(self.session.id, run.id, run.user_id, parent_agent_id=AGENT)
