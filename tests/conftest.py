"""Set-up for all tests: a temporary AIRFLOW_HOME, the profiles of hypothesis, and the event loops of coroutine tests.

pytest draws the examples of properties at random by default. Runs that judge a change use the same examples each time:
CI, `make test-all`, and `make test`, which tries a quarter of the examples. CONTRIBUTING.md says how to try more.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.provider.virtual_time import VirtualTimeLoop

if TYPE_CHECKING:
    from collections.abc import Callable

# The time that an example takes depends on how busy the machine is, so examples have no deadline.
_UNTIMED = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("random", _UNTIMED)
settings.register_profile("repeatable", _UNTIMED, derandomize=True)
settings.register_profile("quick", _UNTIMED, derandomize=True, max_examples=25)
settings.load_profile("repeatable" if "CI" in os.environ else "random")

if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    # The parent process has created the home that its workers inherit, and removes it.
    os.environ["AIRFLOW_HOME"] = os.path.join(os.environ["AIRFLOW_HOME"], worker)
elif "AIRFLOW_HOME" not in os.environ:
    # The import of Airflow writes a configuration file to AIRFLOW_HOME, so the variable is set before the import.
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="airflow-home-")
    atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell lets background processes ignore SIGINT. The programs that tests interrupt would inherit this.
    signal.signal(signal.SIGINT, signal.default_int_handler)


if tuple(map(int, version("apache-airflow-core").split(".")[:2])) < (3, 3):
    # An older Airflow starts and ends no task in a triggerer; see `provider/test_old_airflow_without_worker.py`.
    collect_ignore = [
        "provider/test_trigger_end.py",
        "provider/test_triggerer_start.py",
        "unit/test_triggerer_start.py",
    ]

# Collecting the tests creates millions of objects that stay: a third of its time went into garbage collections.
gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start garbage collections, which leave out the modules and the tests that are loaded."""
    gc.freeze()
    gc.enable()


def forget_secrets() -> None:
    """Let Airflow forget the secrets that it masks in logs.

    Each further secret lets Airflow compile the expression of all secrets anew, and each test server has a connection
    of its own, which is a secret.
    """
    if (masker := sys.modules.get("airflow.sdk._shared.secrets_masker")) is not None:
        masker.reset_secrets_masker()


def pytest_runtest_teardown() -> None:
    """Forget the secrets of the test."""
    forget_secrets()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute groups of tests with `--dist loadgroup`."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from tests.side_by_side import GroupScheduling

    return GroupScheduling(config, log)


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Choose the event loop of an asynchronous test and of its fixtures."""
    if item.get_closest_marker("virtual_time"):
        return {"virtual time": VirtualTimeLoop}
    return {"real time": asyncio.new_event_loop}
