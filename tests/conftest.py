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

from flowckpt.engine.run import live
from flowckpt.evidence import claims
from flowckpt.execution.thread import AbandonedStepError
from tests import in_process
from tests.stable_ids import ADDRESS

settings.register_profile("tests", settings(), deadline=None)  # no test depends on the speed of the machine
settings.load_profile("tests")

live.WATCH.beat.beat_every(86_400)  # no thread writes between the operations that a test counts

pytest.register_assert_rewrite("flowckpt.testing.contract")

pytest_plugins = [
    "tests.browser",
    "tests.late",
    "tests.postgres",
    "tests.s3",
]  # one browser and one server of each kind for a worker


MEMORY = Path("/dev/shm")
"""Where files are in memory: a sync costs nothing there, and the tests make a hundred thousand."""

ROOM = 4 << 30


def pytest_addoption(parser):
    parser.addoption("--soak", action="store_true", help="run the long proofs too, and the others at full length")
    parser.addoption("--on-disk", action="store_true", help="keep files on the disk, as --soak does, and not in memory")


def pytest_configure(config):
    is_on_disk = config.getoption("--on-disk") or config.getoption("--soak") or "TMPDIR" in os.environ
    if not is_on_disk and is_memory(MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))  # of the workers, too
        tempfile.tempdir = str(MEMORY)  # a law makes a directory for each example
    # A shell that starts the tests in the background, or nohup, has these ignored; every program of a test inherits that.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.hookimpl(trylast=True)
def pytest_sessionstart():
    """Python drops an exception that another thread raises in a step while the callback of a weak reference runs there.

    The step then goes to its end like one that catches everything: the engine knows such steps, but pytest would call
    the dropped exception a failure of the test that runs just then.
    """
    report = sys.unraisablehook

    def report_all_others(unraisable):
        if not issubclass(unraisable.exc_type, AbandonedStepError):
            report(unraisable)

    sys.unraisablehook = report_all_others


def is_memory(place: Path) -> bool:
    """Tell whether there is room for the tests in memory, and programs can be run from there."""
    try:
        found = os.statvfs(place)
    except OSError:
        return False
    is_usable = os.access(place, os.W_OK) and not found.f_flag & (os.ST_NOEXEC | os.ST_RDONLY)
    return is_usable and found.f_bavail * found.f_frsize >= ROOM


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """All tests on several workers; some of them, that somebody names, in this process, where they can be watched.

    Two for each processor: half of the time a test waits, for a disk or for another process.
    """
    is_whole = config.args_source is not pytest.Config.ArgsSource.ARGS
    return min(2 * (os.cpu_count() or 1), 8) if is_whole else 0


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Let no collection of garbage look at the thousands of tests again and again: they stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # and no collection before it: half a second, and there is hardly any garbage yet
        gc.set_threshold(20_000, 20, 10)  # by default, 7% of the time of most tests is spent looking for garbage
        gc.enable()


def pytest_collection_modifyitems(config, items):
    if changing := [item.nodeid for item in items if ADDRESS.search(item.nodeid)]:
        raise pytest.UsageError(f"an id with an address is another one in each worker: {changing[0]}; use stable_ids")
    in_process.is_soak = config.getoption("--soak")
    if not in_process.is_soak:
        skip = pytest.mark.skip(reason="a long proof: run with --soak")
        for item in items:
            if "soak" in item.keywords:
                item.add_marker(skip)


_NUMBERS = itertools.count()


@pytest.fixture
def tmp_path(request, tmp_path_factory):
    """A directory of the test's own, as pytest's, whose search for a free number reads all there are: 4 ms a test."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    return tmp_path_factory.mktemp(f"{name}-{next(_NUMBERS)}", numbered=False)


@pytest.fixture(scope="session")
def is_soak(request) -> bool:
    """Whether the long proofs are asked for."""
    return request.config.getoption("--soak")


@pytest.fixture(autouse=True)
def no_registered_database(monkeypatch):
    """Forget the databases that a test registers, or that its settings name: claims of the next test would find them."""
    monkeypatch.setattr(claims, "_DATABASES", {})
