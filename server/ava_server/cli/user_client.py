"""What `ava user` asks: the requests of `service.user_requests`, answered in this process or by a server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

from ava_server.cli.log_access import open_log, read_settings, record_setting
from ava_server.cli.remote import Connection
from ava_server.cli.secret_input import ask_pin_if_set, require_person
from ava_server.cli.terminal import Place
from ava_server.config.changes import with_shared_users
from ava_server.config.sign_in import Passkeys
from ava_server.config.tokens import Scope
from ava_server.core.data_root import DataRoot
from ava_server.service.record_requests import RecordRequest
from ava_server.service.user_requests import UsersHandler

P = ParamSpec("P")
T = TypeVar("T")


class UsersTransport(Protocol):
    """Carries requests about users to what answers them.

    Attributes:
        place: Where that is: a data root, or the address of a server.
    """

    place: Place

    async def send(self, request: RecordRequest[UsersHandler, P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the answer. Raises AvaError, AuditError if there is none; ValueError if it has another form."""
        ...


class MemoryUsers:
    """Has requests about users answered in this process, for the owner of a data root."""

    def __init__(self, root: DataRoot) -> None:
        self.place: Place = root
        self._handler = _OwnersHandler(
            root,
            lambda: with_shared_users(read_settings(root)),
            partial(open_log, root),
            partial(record_setting, root),
        )

    async def send(self, request: RecordRequest[UsersHandler, P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await request.answer(self._handler, *args, **kwargs)


class _OwnersHandler(UsersHandler):
    """Answers the owner of the data root, who may set everything; some of it takes a person at the terminal."""

    async def check_added(self, user: str, scopes: Sequence[Scope]) -> None:
        await prepare_for(self.root, scopes)

    async def check_removed(self, user: str) -> None:
        if Passkeys(self.root.passkeys).of(user):
            await require_person(self.root, "ava user remove")


async def prepare_for(root: DataRoot, scopes: Sequence[Scope]) -> None:
    """Ask for the PIN where a token with these scopes needs it, and make the data root."""
    if "approve" in scopes:
        await ask_pin_if_set(root)
    root.create()


@asynccontextmanager
async def open_users(server: Connection | None, root: Callable[[], DataRoot]) -> AsyncGenerator[UsersTransport]:
    """Open the server, or without one the data root. Raises AvaError if it cannot be used."""
    if server is None:
        yield MemoryUsers(root())
        return
    from ava_server.cli.transport import reached

    async with reached(server) as transport:
        yield transport
