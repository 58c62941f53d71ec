"""The relay: it passes a confined command's connections to one port of its own loopback on to a unix socket outside.

It is a child of the supervisor, outside of the sandbox: the command can neither see nor signal it, and it ends with the
command like all that the supervisor has started. Only its helper enters the command's network, to listen there, and it
hands the listening socket out and ends. Until then bubblewrap holds the command back.
"""

from __future__ import annotations

import os
import select
import socket
import struct

from ava_roles.sandbox.launcher import kernel
from ava_roles.sandbox.launcher.child import drop_to_user

TYPE_CHECKING = False

if TYPE_CHECKING:
    import signal
    from typing import NoReturn
else:
    import _signal as signal

CONNECTIONS = 256
"""At the same time; others wait in the kernel's queue."""
_OPEN_FILES = 3 * CONNECTIONS
_QUEUE = 128
_PIECE = 65_536
_PIECES = 8
"""Moved in one direction of a connection before the others have their turn."""
_RETRY_MS = 10
_FREE_BIND = 15
_RESET = struct.pack("ii", 1, 0)
_LISTENS = b"listens"
_GONE = b"gone"


class Relay:
    """The relay of one command to `local` (port, path of the socket), as its supervisor holds it.

    `uid` is the command's user where the server is root, else 0. `options` are bubblewrap's, for the command's process.
    `faults` becomes readable when the relay has failed or was ended.
    """

    def __init__(self, local: tuple[int, str], uid: int) -> None:
        self.faults, fault_at = os.pipe()
        started, started_at = os.pipe()
        held, self._release_at = os.pipe()
        self.options = ("--info-fd", started_at, "--block-fd", held)
        supervisor = os.getpid()
        if os.fork() == 0:
            _run(supervisor, (started, self._release_at, fault_at), local, uid)
        os.close(started)
        os.close(fault_at)

    def begin(self) -> None:
        """Leave the descriptors of `options` to the command's process."""
        for descriptor in self.options[1::2]:
            os.close(int(descriptor))

    def end(self) -> str:
        """Return what has failed, in words, once the processes have ended; until then the command must be held back."""
        os.close(self._release_at)
        os.set_blocking(self.faults, False)
        try:
            fault = os.read(self.faults, 4_096).decode("utf-8", "replace")
        except BlockingIOError:
            fault = ""
        os.close(self.faults)
        return fault or "the relay to its local server was ended from outside"


def _run(supervisor: int, descriptors: tuple[int, int, int], local: tuple[int, str], uid: int) -> NoReturn:
    """Be the relay. Afterwards this process holds nothing of the supervisor's: its pipes tell others when it ends."""
    started, release_at, fault_at = descriptors
    try:
        signal.set_wakeup_fd(-1)
        kernel.end_with_parent()
        if os.getppid() == supervisor:  # else it has ended already
            _close_all_but(descriptors)
            kernel.allow_open_files(_OPEN_FILES)
            port, path = local
            folder, name = os.path.split(path)
            os.chdir(folder)  # a socket's address has to be short
            listener = _listen(started, port, uid)
            os.write(release_at, b"\0")
            os.close(release_at)
            _Connections(listener, name).pass_on()
    except BaseException as error:
        os.write(fault_at, f"its local server cannot be reached: {_describe(error)}".encode())
    finally:
        os._exit(1)


def _close_all_but(descriptors: tuple[int, ...]) -> None:
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in descriptors:
            try:
                os.close(number)
            except OSError:  # that of the list itself
                pass


def _describe(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or repr(error)


def _listen(started: int, port: int, uid: int) -> socket.socket:
    """Listen in the command's network. Raises ConnectionError if it cannot be entered."""
    text = ""
    while "}" not in text:
        part = os.read(started, 4_096)
        if not part:
            _await_end()
        text += part.decode()
    os.close(started)
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        _hand_out_listener(theirs, _number(text, "child-pid"), _number(text, "net-namespace"), port, uid)
    theirs.close()
    answer, descriptors, _flags, _address = socket.recv_fds(ours, 4_096, 1)
    os.wait()
    ours.close()
    if answer == _GONE:
        _await_end()
    if not descriptors:
        raise ConnectionError(answer.decode() or "what listens for it was ended from outside")
    listener = socket.socket(fileno=descriptors[0])
    listener.setblocking(False)
    return listener


def _await_end() -> NoReturn:
    """Wait to be ended: bubblewrap has failed, and the supervisor will say why."""
    while True:
        signal.pause()


def _number(text: str, name: str) -> int:
    """Return a number from bubblewrap's JSON; a module for that would take longer than everything else here."""
    return int(text.partition(f'"{name}":')[2].partition(",")[0].strip(" \n}"))


def _hand_out_listener(theirs: socket.socket, pid: int, inode: int, port: int, uid: int) -> NoReturn:
    """Enter the network of a process, and send a socket that listens there, or why there is none."""
    try:
        if uid:
            drop_to_user(uid)
        network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        if os.fstat(network).st_ino != inode:
            raise ProcessLookupError  # its number belongs to another process by now
        kernel.enter_network(network)
        listener = socket.socket()
        listener.setsockopt(socket.IPPROTO_IP, _FREE_BIND, 1)  # the loopback may not be up yet
        listener.bind(("127.0.0.1", port))
        listener.listen(_QUEUE)
        socket.send_fds(theirs, [_LISTENS], [listener.fileno()])
    except (FileNotFoundError, ProcessLookupError):
        theirs.send(_GONE)
    except BaseException as error:
        theirs.send(_describe(error).encode())
    finally:
        os._exit(0)


class _Connection:
    """One connection: its `sides`, the command's and the server's socket, and what each is waited for (`masks`)."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.sides = (client, server)
        self.masks = [0, 0]
        self._pending = [memoryview(b""), memoryview(b"")]  # read from this side, and still to be written to the other
        self._open = [True, True]  # more may be read from this side
        self._broken = False

    def events_of(self, side: int) -> int:
        """Return the events that a side has to be waited for, 0 for none."""
        events = 0
        if self._open[side] and not self._pending[side]:
            events |= select.POLLIN
        if self._pending[1 - side]:
            events |= select.POLLOUT
        return events

    @property
    def has_ended(self) -> bool:
        return not any(self._open) and not any(self._pending)

    def move(self, side: int) -> None:
        """Move on what comes from a side, until something has to be waited for."""
        sink = self.sides[1 - side]
        try:
            for _ in range(_PIECES):
                if not self._pending[side] and not self._read(side):
                    return
                self._pending[side] = self._pending[side][sink.send(self._pending[side]) :]
        except BlockingIOError:
            pass
        except OSError:  # the sink is gone; what comes from it may still be under way
            self._pending[side], self._open[side], self._broken = memoryview(b""), False, True

    def _read(self, side: int) -> bool:
        """Read a piece from a side; return True if there was one. At its end, shut down writing to the other side.

        Raises OSError if the other side is gone.
        """
        if not self._open[side]:
            return False
        try:
            self._pending[side] = memoryview(self.sides[side].recv(_PIECE))
        except BlockingIOError:
            return False
        except OSError:  # it was cut off: nothing can be written to it either
            self._open = [False, False]
            self._pending[1 - side] = memoryview(b"")
            self._broken = True
            return False
        if not self._pending[side]:
            self._open[side] = False
            self.sides[1 - side].shutdown(socket.SHUT_WR)
        return bool(self._pending[side])

    def cut(self) -> None:
        """Close it as one that broke: half an answer must not look like a whole one."""
        self._broken = True
        self.close()

    def close(self) -> None:
        client, server = self.sides
        if self._broken:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        client.close()
        server.close()


class _Connections:
    def __init__(self, listener: socket.socket, name: str) -> None:
        self._listener, self._name = listener, name
        self._waiting = select.poll()
        self._waiting.register(listener.fileno(), select.POLLIN)
        self._by_descriptor: dict[int, _Connection] = {}
        self._retries = False

    def pass_on(self) -> NoReturn:
        while True:
            events_to_wait_for = 0
            if not self._retries and len(self._by_descriptor) < 2 * CONNECTIONS:
                events_to_wait_for = select.POLLIN
            self._waiting.modify(self._listener.fileno(), events_to_wait_for)
            timeout_ms = _RETRY_MS if self._retries else None
            events = self._waiting.poll(timeout_ms)
            self._retries = False
            for descriptor, _event in events:
                connection = self._by_descriptor.get(descriptor)
                if connection is not None:
                    self._serve(connection)
                elif descriptor == self._listener.fileno():
                    self._accept()

    def _serve(self, connection: _Connection) -> None:
        connection.move(0)
        connection.move(1)
        has_ended = connection.has_ended
        for side, end in enumerate(connection.sides):
            events = 0 if has_ended else connection.events_of(side)
            if events == connection.masks[side]:
                continue
            connection.masks[side] = events
            if events:
                self._waiting.register(end.fileno(), events)
            else:  # else its end would be reported again and again
                self._waiting.unregister(end.fileno())
        if has_ended:
            for end in connection.sides:
                del self._by_descriptor[end.fileno()]
            connection.close()

    def _accept(self) -> None:
        """Connect to the server, and take the connection that is to be passed on to it."""
        server = None
        is_there = True
        try:
            server = socket.socket(socket.AF_UNIX)
            server.setblocking(False)
            try:
                server.connect(self._name)
            except (FileNotFoundError, ConnectionRefusedError):
                is_there = False
            client, _address = self._listener.accept()
        except OSError:  # the server's queue is full, the command has hung up, or too many files are open
            self._retries = True
            if server is not None:
                server.close()
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(client, server)
        if not is_there:
            connection.cut()
            return
        for end in connection.sides:
            self._by_descriptor[end.fileno()] = connection
        self._serve(connection)
