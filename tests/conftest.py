"""How many tests run at once, which of them only on request, what their children inherit, and Hypothesis profiles."""

import os
import signal

import pytest
from hypothesis import settings

settings.register_profile("long", max_examples=250, stateful_step_count=60, deadline=None)

LONG = (
    "tests/audit/test_mirror.py::test_any_cut_of_the_mirror_heals",
    "tests/audit/test_search_words.py::test_ten_thousand",
    "tests/roles/test_copies.py::test_what_stands_in_a_repository",
    "tests/roles/test_documents.py::test_a_page_of_a_million_tags",
    "tests/roles/test_documents.py::test_a_page_that_unpacks_to_too_much",
    "tests/roles/test_documents.py::test_a_sheet_",
    "tests/roles/test_documents.py::test_odd_csv_files",
    "tests/roles/test_foreign_servers.py",
    "tests/roles/test_workbench.py::test_a_cancelled_making",
    "tests/roles/test_workshop_killed.py",
    "tests/roles/test_workshop_repositories.py::test_nothing_of_a_repository_runs",
    "tests/roles/test_workshop_repositories.py::test_what_stands_in_a_repository",
    "tests/server/hosts/test_init.py",
    "tests/server/test_cli.py::test_a_data_root_that_can_be_none",
    "tests/server/test_cli_export.py",
    "tests/server/test_cli_logs.py",
    "tests/server/test_cli_memory.py",
    "tests/server/test_cli_models.py",
    "tests/server/test_cli_verify.py",
    "tests/server/test_coder_killed.py",
    "tests/server/test_dashboard.py::test_of_a_place",
    "tests/server/test_dashboard_terminal.py",
    "tests/server/test_desk_forms.py::test_a_group_of_long_results",
    "tests/server/test_doctor.py",
    "tests/server/test_doctor_broken.py",
    "tests/server/test_doctor_foreign.py",
    "tests/server/test_doctor_online.py",
    "tests/server/test_erase.py::test_an_erase_that_is_killed",
    "tests/server/test_foreign_confinement.py",
    "tests/server/test_foreign_proposals.py",
    "tests/server/test_foreign_runs.py",
    "tests/server/test_names.py",
    "tests/server/test_notifying.py",
    "tests/server/test_quotes.py::test_no_quote_keeps",
    "tests/server/test_search_runs.py::test_online_the_doctor",
    "tests/server/test_search_runs.py::test_the_doctor",
    "tests/system/test_approval_processes.py",
    "tests/system/test_background.py",
    "tests/system/test_bad_moments.py",
    "tests/system/test_cli_approve.py",
    "tests/system/test_cli_resume.py",
    "tests/system/test_cli_roles.py",
    "tests/system/test_cli_run.py",
    "tests/system/test_cli_steer.py",
    "tests/system/test_cli_together.py",
    "tests/system/test_completion.py",
    "tests/system/test_demo.py",
    "tests/system/test_escapes.py",
    "tests/system/test_foreign_killed.py",
    "tests/system/test_host_calls.py",
    "tests/system/test_host_habits.py",
    "tests/system/test_http_approvals.py",
    "tests/system/test_http_attacks.py",
    "tests/system/test_http_coder.py",
    "tests/system/test_http_end.py",
    "tests/system/test_http_hostile_server.py",
    "tests/system/test_http_limits.py",
    "tests/system/test_http_proxies.py",
    "tests/system/test_http_revoked.py",
    "tests/system/test_http_users.py",
    "tests/system/test_mistakes.py",
    "tests/system/test_other_systems.py",
    "tests/system/test_other_systems_cli.py",
    "tests/system/test_shutdown.py::test_initialize_is_answered_while",
    "tests/system/test_shutdown.py::test_while_a_model_call_hangs",
    "tests/system/test_soak.py",
    "tests/system/test_two_servers.py",
    "tests/test_doc_commands.py::test_the_commands_of_a_page",
)
"""Tests that start many processes or chew on large files: together they take longer than all others."""
ELSEWHERE = "[landlock"
"""So begin the parameters of tests that are tried in another sandbox once more."""
ALL, _SHORT = "--all", "PYTEST_WITHOUT_LONG"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Half as many again as processors: tests wait for other processes and for deadlines much of their time."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(here + here // 2, 2)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs everything."""
    parser.addoption(ALL, action="store_true", help="those that take long too; who names a file gets all of it anyway")


def pytest_configure(config: pytest.Config) -> None:
    """Decide, once for all workers, whether those that take long are left out; have children hear signals."""
    if not hasattr(config, "workerinput"):
        named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
        os.environ[_SHORT] = "" if named or config.getoption(ALL) else "1"
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        for number in (signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGINT)):
            # A shell has its background jobs ignore Ctrl-C, nohup has a program ignore the end of its terminal, and so
            # would every process that a test starts and sends these signals. A handler that does nothing still ignores
            # them here, and is not inherited: a new program has the default.
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, lambda _number, _frame: None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave them out."""
    if os.environ.get(_SHORT):
        long = [item for item in items if _is_long(item.nodeid)]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not _is_long(item.nodeid)]


def _is_long(nodeid: str) -> bool:
    return nodeid.startswith(LONG) or (nodeid.startswith("tests/roles/test_workshop") and ELSEWHERE in nodeid)
