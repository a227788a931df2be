"""Options and fixtures of all tests."""

from __future__ import annotations

import gc
import itertools
import os
import re
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.engine.run import live
from flowckpt.evidence import claims
from flowckpt.execution.thread import AbandonedStepError
from tests import in_process
from tests.stable_ids import ADDRESS

settings.register_profile("tests", settings(), deadline=None)  # no test depends on the speed of the machine
settings.load_profile("tests")

live.WATCH.beat.set_interval(86_400)  # no thread writes between the operations that a test counts

pytest.register_assert_rewrite("flowckpt.testing.contract")

pytest_plugins = [
    "tests.browser",
    "tests.late",
    "tests.postgres",
    "tests.reopening",
    "tests.s3",
]  # one browser and one server of each kind for a worker


MEMORY = Path("/dev/shm")
"""A file system in memory: syncs are free there, and the tests make a hundred thousand."""

ROOM = 4 << 30


@pytest.fixture
def in_place():
    """Let the stores of a test block, also in its event loop."""
    with blocking_allowed(True):
        yield


def pytest_addoption(parser):
    parser.addoption("--soak", action="store_true", help="run the long tests too, and the others at full length")
    parser.addoption("--on-disk", action="store_true", help="keep files on the disk, like --soak, and not in memory")


def pytest_configure(config):
    is_on_disk = config.getoption("--on-disk") or config.getoption("--soak") or "TMPDIR" in os.environ
    if not is_on_disk and is_memory(MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))  # of the workers, too
        tempfile.tempdir = str(MEMORY)  # property tests make a directory for each example
    # A background shell, or nohup, ignores these signals, and every program of a test would inherit that.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.hookimpl(trylast=True)
def pytest_sessionstart():
    """Ignore dropped exceptions of abandoned steps.

    Python drops an exception that another thread raises in a step while the callback of a weak reference runs there. The
    engine handles such a step like one that catches everything, but pytest would report the dropped exception as a failure
    of the current test.
    """
    report = sys.unraisablehook

    def report_all_others(unraisable):
        if not issubclass(unraisable.exc_type, AbandonedStepError):
            report(unraisable)

    sys.unraisablehook = report_all_others


def is_memory(place: Path) -> bool:
    """Return whether there is space for the tests in memory, and programs can be executed there."""
    try:
        found = os.statvfs(place)
    except OSError:
        return False
    is_usable = os.access(place, os.W_OK) and not found.f_flag & (os.ST_NOEXEC | os.ST_RDONLY)
    return is_usable and found.f_bavail * found.f_frsize >= ROOM


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """Run the whole suite on several workers, and named tests in this process, where they can be debugged.

    Three workers for each processor, because a test waits much of its time for a disk or another process.
    """
    is_whole = config.args_source is not pytest.Config.ArgsSource.ARGS
    return min(3 * (os.cpu_count() or 1), 8) if is_whole else 0


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep the garbage collector from traversing the thousands of tests again and again: they stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # without a collection before it, which would take half a second and find hardly any garbage
        gc.set_threshold(20_000, 20, 10)  # with the default, most tests spend 7 % of their time in the collector
        gc.enable()


def pytest_collection_modifyitems(config, items):
    if changing := [item.nodeid for item in items if ADDRESS.search(item.nodeid)]:
        raise pytest.UsageError(f"an id with an address differs between workers: {changing[0]}; use stable_ids")
    in_process.is_soak = config.getoption("--soak")
    if not in_process.is_soak:
        skip = pytest.mark.skip(reason="a long test: run with --soak")
        for item in items:
            if "soak" in item.keywords:
                item.add_marker(skip)


_NUMBERS = itertools.count()


@pytest.fixture
def tmp_path(request, tmp_path_factory):
    """A directory of the test, without pytest's search for a free number, which takes 4 ms per test."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    return tmp_path_factory.mktemp(f"{name}-{next(_NUMBERS)}", numbered=False)


@pytest.fixture(scope="session")
def is_soak(request) -> bool:
    """Whether the long tests run."""
    return request.config.getoption("--soak")


@pytest.fixture(autouse=True)
def no_registered_database(monkeypatch):
    """Forget the databases of a test, so that claims of the next test do not find them."""
    monkeypatch.setattr(claims, "_DATABASES", {})
