"""A command that reaches one local server: that one alone, with everything that a connection can do."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream
from support.processes import children_of, lives, processes_of_run
from support.sandboxes.attacks import ATTACKS, attack, command, machine_for, needs, python, sandbox
from support.sandboxes.sandbox_server import NASTY

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.launcher import relay
from ava_roles.sandbox.launcher.spec import ResourceLimits
from ava_roles.sandbox.sandbox import Command, Kind, ReachableServer
from ava_roles.sandbox.supervised import Machine, SupervisedSandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands are confined on Linux alone")

PORT = 8_080
PRELUDE = """
import socket, struct, sys, time
def connect(port=8080, host='127.0.0.1'):
    return socket.create_connection((host, port), 5)
def read(end):
    parts = []
    while part := end.recv(65536):
        parts.append(part)
    return b''.join(parts)
"""
Serve = Callable[[ByteStream], Awaitable[None]]


@pytest.fixture(autouse=True)
def _needs_bubblewrap(request: pytest.FixtureRequest) -> None:
    if "kind" not in request.fixturenames:
        needs("bubblewrap")


# -- nothing else is reached ------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_no_attack_succeeds_beside_a_local_server(tmp_path: Path) -> None:
    async with listening(tmp_path / "socket", echo) as local:
        found = await attack("bubblewrap", tmp_path, local)
    assert set(found) == set(ATTACKS)
    assert [name for name, outcome in found.items() if outcome == "OPEN"] == [], found


OTHER_WAYS = """
def tries(what):
    try:
        what()
    except OSError as error:
        return type(error).__name__
    return 'OPEN'
def unix(name):
    socket.socket(socket.AF_UNIX).connect(name)
import os
port, path, abstract = int(sys.argv[1]), sys.argv[2], sys.argv[3]
print({
    'local': tries(connect),
    'port': tries(lambda: connect(port)),
    'port over IPv6': tries(lambda: connect(port, '::1')),
    'public': tries(lambda: connect(53, '1.1.1.1')),
    'public over UDP': tries(lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('1.1.1.1', 53))),
    'name': tries(lambda: socket.getaddrinfo('example.org', 80)),
    'socket': tries(lambda: unix(path)),
    'abstract': tries(lambda: unix(chr(0) + abstract)),
    'X': tries(lambda: unix('/tmp/.X11-unix/X0')),
    'D-Bus': tries(lambda: unix('/run/dbus/system_bus_socket')),
    'bind': tries(lambda: socket.create_server(('127.0.0.1', 8080))),
    'bind all': tries(lambda: socket.create_server(('0.0.0.0', 8080))),
})
print([number for number in os.listdir('/proc') if number.isdecimal() and int(number) not in (1, os.getpid())])
print(sorted(os.listdir('/proc/self/fd')))
print([line.split(':')[0].strip() for line in open('/proc/net/dev').readlines()[2:]])
"""


async def test_reaches_the_local_server_and_neither_other_ports_nor_sockets(here: Path) -> None:
    abstract = f"ava-{secrets.token_hex(8)}"
    with socket.create_server(("127.0.0.1", 0)) as other, socket.socket(socket.AF_UNIX) as nameless:
        nameless.bind("\0" + abstract)
        nameless.listen()
        text = await output_of(
            here, echo, OTHER_WAYS, str(other.getsockname()[1]), str(here.parent / "socket"), abstract
        )
    ways, processes, descriptors, interfaces = text.splitlines()
    assert "'local': 'OPEN'" in ways
    assert ways.count("OPEN") == 1, ways
    assert processes == "[]", "the relay is not in the sandbox"
    assert descriptors == "['0', '1', '2', '3']", "the last is that of the list"
    assert interfaces == "['lo']"


async def test_nobody_outside_reaches_the_port(here: Path) -> None:
    async def ask(stream: ByteStream) -> None:
        assert await stream.receive() == b"up"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", PORT), 1)
        await stream.send(b"nobody")

    assert await output_of(here, ask, "end = connect(); end.send(b'up'); print(read(end).decode())") == "nobody\n"


@pytest.mark.parametrize("kind", ["landlock", "none"])
async def test_other_sandboxes_refuse_it_and_say_what_to_install(kind: Kind, here: Path) -> None:
    needs(kind)
    order = replace(command(here, "/bin/true"), local=ReachableServer(PORT, here.parent / "socket"))
    box = sandbox(kind, here.parent)
    with pytest.raises(ToolFailed, match=f"this sandbox is {kind}: install bubblewrap"):
        await box.run(order)
    with pytest.raises(ToolFailed, match="install bubblewrap"):
        async with box.start(order):
            pass


@pytest.mark.parametrize("local", [ReachableServer(0, Path("/socket")), ReachableServer(PORT, Path("socket"))])
async def test_rejects_a_local_server_that_cannot_be(local: ReachableServer, here: Path) -> None:
    with pytest.raises(ValueError, match="cannot be the only server"):
        await sandbox("bubblewrap", here.parent).run(replace(command(here, "/bin/true"), local=local))


async def test_rejects_a_local_server_beside_the_network(here: Path) -> None:
    order = replace(command(here, "/bin/true"), local=ReachableServer(PORT, here / "socket"), network=True)
    with pytest.raises(ValueError, match="cannot be the only server"):
        await sandbox("bubblewrap", here.parent).run(order)


# -- what a connection can do -----------------------------------------------------------------------------------------


async def test_passes_on_an_end_in_each_direction_alone(here: Path) -> None:
    code = "end = connect(); end.send(b'all'); end.shutdown(1); time.sleep(0.05); print(read(end).decode())"
    assert await output_of(here, echo, code) == "heard all\n"

    async def answer_first(stream: ByteStream) -> None:
        await stream.send(b"first")
        await stream.send_eof()
        assert await read_all(stream) == b"late"

    (here.parent / "socket").unlink()
    code = "end = connect(); print(read(end).decode()); time.sleep(0.05); end.send(b'late')"
    assert await output_of(here, answer_first, code) == "first\n"


async def test_passes_each_piece_on_at_once(here: Path) -> None:
    async def pong(stream: ByteStream) -> None:
        async for part in stream:
            await stream.send(part)

    code = (
        "end = connect(); began = time.monotonic()\n"
        "for number in range(200):\n"
        "    end.send(b'x'); assert end.recv(1) == b'x'\n"
        "print(time.monotonic() - began)"
    )
    assert float(await output_of(here, pong, code)) < 2, "delayed acknowledgements would take 8 s"


MANY = """
import asyncio, hashlib
async def one(number, size):
    reader, writer = await asyncio.open_connection('127.0.0.1', 8080)
    piece = bytes([number]) * 65536
    async def send():
        for _ in range(size // len(piece)):
            writer.write(piece)
            await writer.drain()
        writer.write_eof()
    sending = asyncio.create_task(send())
    got = 0
    while part := await reader.read(65536):
        assert part == bytes([number]) * len(part)
        got += len(part)
    await sending
    assert got == size, (number, got)
    writer.close()
async def main():
    count, size = map(int, sys.argv[1:])
    await asyncio.gather(*(one(number % 256, size) for number in range(count)))
    print('all')
asyncio.run(main())
"""


@pytest.mark.parametrize(("count", "size"), [(64, 1_638_400), (1, 104_857_600), (400, 65_536)])
async def test_passes_many_connections_and_large_streams_on(here: Path, count: int, size: int) -> None:
    async def mirror(stream: ByteStream) -> None:
        async for part in stream:
            await stream.send(part)

    assert await output_of(here, mirror, MANY, str(count), str(size)) == "all\n"


def resident_kb(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0])


def processor_time(pid: int) -> int:
    """In hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@asynccontextmanager
async def relayed(here: Path, serve: Serve, code: str) -> AsyncGenerator[tuple[int, Callable[[], Awaitable[bytes]]]]:
    """A running command; its relay's process, and its next output."""
    before = set(children_of(os.getpid()))
    async with (
        listening(here.parent / "socket", serve) as local,
        sandbox("bubblewrap", here.parent).start(reaching(here, local, code)) as pipes,
    ):
        [guard] = set(children_of(os.getpid())) - before
        with anyio.fail_after(40):
            while not (pair := [pid for child in children_of(guard) for pid in children_of(child)])[1:]:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        yield pair[0], pipes.stdout.receive


async def test_a_reader_that_is_slow_slows_the_writer_down(here: Path) -> None:
    reads = anyio.Event()

    async def wait(stream: ByteStream) -> None:
        await reads.wait()
        await read_all(stream)

    code = (
        "end = connect(); end.setblocking(False); sent = 0; last = time.monotonic()\n"
        "while time.monotonic() < last + 0.5:\n"
        "    try: sent += end.send(bytes(65536)); last = time.monotonic()\n"
        "    except BlockingIOError: time.sleep(0.01)\n"
        "print(sent, flush=True); end.setblocking(True); end.sendall(bytes(50_000_000)); end.close(); print('all')"
    )
    async with relayed(here, wait, code) as (pid, next_output):
        assert int(await next_output()) < 20_000_000
        assert resident_kb(pid) < 60_000
        reads.set()
        assert await next_output() == b"all\n"


async def test_an_idle_connection_takes_no_processor_time(here: Path) -> None:
    """Also one whose other side has ended in one direction, or is not read from."""
    broken: list[ByteStream] = []

    async def hold(stream: ByteStream) -> None:
        try:
            await stream.send(bytes(50_000_000))  # nobody reads it, and it is more than the way holds
        except anyio.BrokenResourceError:  # the command was ended, with the test
            broken.append(stream)
        await anyio.sleep_forever()

    code = (
        "ends = [connect() for _ in range(3)]; ends[0].shutdown(socket.SHUT_WR)\n"
        "print('up', flush=True); time.sleep(60)"
    )

    async with relayed(here, hold, code) as (pid, next_output):
        assert await next_output() == b"up\n"
        await anyio.sleep(0.3)
        before = processor_time(pid)
        await anyio.sleep(0.5)
        assert processor_time(pid) - before <= 5
        assert broken == []


async def test_a_connection_that_breaks_is_reset_and_does_not_look_ended(here: Path) -> None:
    async def break_off(stream: ByteStream) -> None:
        await stream.receive(1)
        await stream.send(b"half")  # and leaves what was sent to it unread

    code = (
        "end = connect(); end.sendall(b'a question')\n"
        "try: read(end); print('ended')\n"
        "except ConnectionResetError: print('reset')"
    )
    assert await output_of(here, break_off, code) == "reset\n"


async def test_the_server_sees_that_the_command_hung_up(here: Path) -> None:
    saw: list[str] = []

    async def stream_on(stream: ByteStream) -> None:
        try:
            while True:
                await stream.send(b"more" * 1000)
        except (anyio.BrokenResourceError, anyio.EndOfStream):
            saw.append("gone")

    for how_to in ("end.close()", "end.setsockopt(1, 13, struct.pack('ii', 1, 0)); end.close()"):
        (here.parent / "socket").unlink(missing_ok=True)
        await output_of(here, stream_on, f"end = connect(); end.recv(10); {how_to}; time.sleep(0.3)")
    assert saw == ["gone", "gone"]


async def test_waits_for_a_server_whose_queue_is_full_and_for_one_that_is_not_there_yet(here: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(here.parent / "socket"))
        listener.listen(0)
        code = (
            "ends = [connect() for _ in range(8)]; print('up', flush=True)\n"
            "print(sum(end.recv(1) == b'x' for end in ends))"
        )
        local = ReachableServer(PORT, here.parent / "socket")
        async with sandbox("bubblewrap", here.parent).start(reaching(here, local, code)) as pipes:
            assert await pipes.stdout.receive() == b"up\n"
            for _ in range(8):
                end, _address = await anyio.to_thread.run_sync(listener.accept)
                end.sendall(b"x")
                end.close()
            assert await pipes.stdout.receive() == b"8\n"
    (here.parent / "socket").unlink()
    code = (
        "for tries in range(500):\n"
        "    try: end = connect(); end.send(b'x'); end.shutdown(1); print(read(end).decode(), tries > 0); break\n"
        "    except OSError:\n"
        "        print('reset', flush=True) if not tries else time.sleep(0.02)\n"
    )
    async with sandbox("bubblewrap", here.parent).start(reaching(here, local, code)) as pipes:
        assert await pipes.stdout.receive() == b"reset\n"
        async with listening(here.parent / "socket", echo):
            assert await pipes.stdout.receive() == b"heard x True\n"


async def test_the_path_of_the_socket_may_be_long(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    (folder / "here").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        descriptor = os.open(folder, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{descriptor}/socket")
        os.close(descriptor)
        listener.listen()
        order = reaching(tmp_path / "here", ReachableServer(PORT, folder / "socket"), "connect(); print('up')")
        assert (await sandbox("bubblewrap", tmp_path).run(order)).output == "up\n"


# -- how it ends ------------------------------------------------------------------------------------------------------


async def test_a_cancellation_ends_the_relay_and_what_resists(here: Path) -> None:
    mark = f"S-{secrets.token_hex(8)}"
    before = set(children_of(os.getpid()))
    order = replace(python(here, NASTY, "60", AVA_RUN_ID=mark), local=ReachableServer(PORT, here.parent / "socket"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sandbox("bubblewrap", here.parent).run, order)
        with anyio.fail_after(40):
            while not await anyio.Path(here / "going").exists():  # noqa: ASYNC110 - another process makes it
                await anyio.sleep(0.01)
        [guard] = set(children_of(os.getpid())) - before
        [supervisor] = children_of(guard)
        processes = [guard, supervisor, *children_of(supervisor)]
        assert len(processes) == 4 and processes_of_run(mark)
        began = time.monotonic()
        tasks.cancel_scope.cancel()
    assert time.monotonic() - began < 10
    assert processes_of_run(mark) == []
    assert not any(map(lives, processes))


async def test_the_supervisor_goes_on_to_the_next_command_and_keeps_nothing(here: Path) -> None:
    box, before = sandbox("bubblewrap", here.parent), set(children_of(os.getpid()))
    async with listening(here.parent / "socket", echo) as local:
        for _ in range(3):
            done = await box.run(reaching(here, local, "end = connect(); end.shutdown(1); print(read(end).decode())"))
            assert done.output == "heard \n"
            [guard] = set(children_of(os.getpid())) - before
            [supervisor] = children_of(guard)
            assert children_of(supervisor) == []
        refused = await box.run(python(here, f"{PRELUDE}\nconnect()"))
    assert "ConnectionRefusedError" in refused.output, "the next command without a server reaches none"
    assert children_of(guard) == [supervisor]


async def test_a_command_ends_when_its_relay_is_killed(here: Path) -> None:
    before = set(children_of(os.getpid()))
    order = replace(
        command(here, "/bin/sleep", "60", timeout_s=60), local=ReachableServer(PORT, here.parent / "socket")
    )
    async with anyio.create_task_group() as tasks:

        async def doomed() -> None:
            with pytest.raises(ToolFailed, match="the relay to its local server was ended from outside"):
                await sandbox("bubblewrap", here.parent).run(order)

        tasks.start_soon(doomed)
        with anyio.fail_after(40):
            while not (made := set(children_of(os.getpid())) - before):  # noqa: ASYNC110
                await anyio.sleep(0.01)
            [guard] = made
            while not (pair := [pid for child in children_of(guard) for pid in children_of(child)])[1:]:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        began = time.monotonic()
        os.kill(pair[0], 9)
    assert time.monotonic() - began < 10
    assert not any(map(lives, pair))


async def test_a_missing_folder_of_the_socket_is_reported_and_the_command_does_not_begin(here: Path) -> None:
    order = command(here, "/bin/sh", "-c", "touch begun; sleep 60", timeout_s=60)
    with pytest.raises(ToolFailed, match=r"its local server cannot be reached: .*: No such file or directory"):
        await sandbox("bubblewrap", here.parent).run(
            replace(order, local=ReachableServer(PORT, here / "no" / "socket"))
        )
    assert not (here / "begun").exists()


async def test_a_failure_of_bubblewrap_is_reported_as_such(here: Path) -> None:
    local = ReachableServer(PORT, here.parent / "socket")
    for machine in (
        Machine(machine_for("bubblewrap").uid, "/no/bwrap"),
        Machine(machine_for("bubblewrap").uid, "/bin/false"),
    ):
        box = SupervisedSandbox("bubblewrap", machine, here.parent)
        with anyio.fail_after(40), pytest.raises(ToolFailed, match=r"/no/bwrap: No such file|bubblewrap ended with 1"):
            await box.run(replace(command(here, "/bin/true", timeout_s=60), local=local))


def test_a_helper_that_is_killed_before_it_listens_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_hand_out_listener", lambda *_: os._exit(0))
    started, started_at = os.pipe()
    os.write(started_at, b'{"child-pid": 1, "net-namespace": 2\n}')
    with pytest.raises(ConnectionError, match="ended from outside"):
        relay._listen(started, PORT, 0)
    os.close(started_at)


@asynccontextmanager
async def listening(at: Path, serve: Serve) -> AsyncGenerator[ReachableServer]:
    """Serve at a unix socket."""

    async def one(stream: ByteStream) -> None:
        async with stream:
            await serve(stream)

    async with await anyio.create_unix_listener(str(at)) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, one)
        yield ReachableServer(PORT, at)
        tasks.cancel_scope.cancel()


def reaching(here: Path, local: ReachableServer, code: str, *argv: str, timeout_s: float = 60) -> Command:
    return replace(
        python(here, PRELUDE + code, *argv, timeout_s=timeout_s), local=local, limits=ResourceLimits(open_files=1_024)
    )


async def read_all(stream: ByteStream) -> bytes:
    parts: list[bytes] = []
    async for part in stream:
        parts.append(part)
    return b"".join(parts)


async def echo(stream: ByteStream) -> None:
    with suppress(anyio.BrokenResourceError):  # one who only looks whether it is there may have left
        await stream.send(b"heard " + await read_all(stream))


async def output_of(here: Path, serve: Serve, code: str, *argv: str) -> str:
    async with listening(here.parent / "socket", serve) as local:
        done = await sandbox("bubblewrap", here.parent).run(reaching(here, local, code, *argv))
    assert done.code == 0, done
    return done.output
