"""How many tests run at once, which of them only on request, what their children inherit, and Hypothesis profiles."""

import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from support.processes import end_started_from
from support.properties import BUSY
from support.sample import SEED, commit

_UNTIMED = settings(deadline=None, suppress_health_check=BUSY)
settings.register_profile("untimed", _UNTIMED)
settings.register_profile("some", _UNTIMED, max_examples=40)
settings.register_profile("long", _UNTIMED, max_examples=250, stateful_step_count=60)
settings.load_profile("untimed")

_SECOND_SANDBOX = "[landlock"
"""How the parameters of a test begin that is repeated in the second sandbox."""
_ON_POSTGRES = (
    "test_store.py",
    "test_store_reads.py",
    "test_store_places.py",
    "test_killed_writer.py",
    "test_postgres.py",
)
"""Of the tests of the log, those that always run on Postgres too; the others do so with `--all`."""
ALL = "--all"


def _begin_elsewhere(config: pytest.Config, worker: dict[str, Any]) -> None:
    """Let each worker collect another part first: what pytest compiles of it, the others then read."""
    files = sorted(map(str, (config.rootpath / "tests").rglob("test_*.py")))
    first = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    config.args[:] = files[first:] + files[:first]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """More than processors: tests wait for other processes, the disk and deadlines much of their time."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return here + max(here // 2, 2)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs slow tests too."""
    parser.addoption(ALL, action="store_true", help="run slow tests too; a file that is named runs whole anyway")


def pytest_configure(config: pytest.Config) -> None:
    """Decide, once for all workers, whether slow tests and points are left out; let children receive signals."""
    if not hasattr(config, "workerinput"):
        named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
        whole = named or config.getoption(ALL)
        os.environ[SEED] = "" if whole else commit()
    if os.environ.get(SEED):
        settings.load_profile("some")
        if hasattr(config, "workerinput"):
            _begin_elsewhere(config, config.workerinput)
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        for number in (signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGINT)):
            # Shells start background jobs with Ctrl-C ignored, nohup with the hang-up. Child processes that tests
            # signal would inherit that. A handler that does nothing ignores the signal here and is not inherited.
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, lambda _number, _frame: None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow tests, unless they were asked for; every worker has them in the same order."""
    items.sort(key=lambda item: item.path)
    if os.environ.get(SEED):
        config.hook.pytest_deselected(items=[item for item in items if _is_slow(item)])
        items[:] = [item for item in items if not _is_slow(item)]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a failure at once in the file that AVA_TEST_FAILURES names: a run of hours may be cut short."""
    place = os.environ.get("AVA_TEST_FAILURES")
    if place and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid} ({report.when})\n{report.longreprtext}\n\n")


def _is_slow(item: pytest.Item) -> bool:
    sandbox = item.path.name.startswith("test_worktree") and _SECOND_SANDBOX in item.nodeid
    database = item.path.parent.name == "audit" and "[postgres" in item.nodeid and item.path.name not in _ON_POSTGRES
    return sandbox or database or item.get_closest_marker("slow") is not None


@pytest.fixture
def nothing_stays(tmp_path: Path) -> Generator[None]:
    """End the background processes of the test's data roots: one that serves pages waits half an hour for a browser."""
    yield
    end_started_from(tmp_path)
