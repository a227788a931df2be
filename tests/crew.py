"""Tests in several processes, forked from the one that has collected them, because a collection takes as long as 500 tests.

`-n 4` starts four workers. Each gets a few tests at a time, of one file if possible, and sends their reports.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import warnings
from collections import deque
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

import pytest
from _pytest import junitxml
from _pytest.terminal import TerminalWriter

from tests import forked

_AT_ONCE = 16


def pytest_addoption(parser):
    parser.getgroup("general")._addoption(  # because plugins may not use a short option in lower case
        "-n",
        "--workers",
        default="auto",
        help="processes that run the tests; 0: this one; auto: three a processor, at most 8",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session):
    """Let the server of forked processes import the package meanwhile."""
    if _number_of_workers(session.config):
        forked.share_server()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    """Run the tests in workers, if any are wanted."""
    workers = min(_number_of_workers(session.config), len(session.items))
    if not workers or session.testsfailed:
        return None  # to the loop of pytest
    return _Crew(session).run(workers)


def _number_of_workers(config: pytest.Config) -> int:
    """Return how many workers run the whole suite; named tests run in this process, where they can be debugged.

    Three workers for each processor, because a test waits much of its time for a disk or another process.
    """
    if config.option.collectonly or config.option.usepdb:
        return 0
    if config.option.workers != "auto":
        return int(config.option.workers)
    is_whole = config.args_source is not pytest.Config.ArgsSource.ARGS
    return min(3 * (os.cpu_count() or 1), 8) if is_whole else 0


class _Member:
    """A worker, as the first process sees it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.sent: deque[int] = deque()
        """Numbers of the tests that it has, in their order."""
        self.reserved: deque[int] = deque()
        """The further tests of its file, which it will get unless another worker has none."""
        self.is_ending = False


class _Crew:
    """The workers of a session, and the tests that none of them has yet."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._members: dict[Connection, _Member] = {}
        self._names = itertools.count()
        paths = [item.path for item in session.items]
        self._files = deque(deque(numbers) for _, numbers in itertools.groupby(range(len(paths)), paths.__getitem__))

    def run(self, workers: int) -> bool:
        """Run all tests; in a worker, return as well, for the end of its session."""
        try:
            for _ in range(workers):
                if self._start():
                    return True
            while self._members:
                for connection in wait([*self._members]):
                    if heard := _receive(connection):
                        self._report(connection, *heard)
                    elif self._is_lost(connection) and self._start():
                        return True
        finally:
            for connection, member in self._members.items():
                connection.close()  # it ends after its current test
                os.waitpid(member.pid, 0)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)
        return True

    def _start(self) -> bool:
        """Fork a worker, and return whether this process is the worker, with all its tests run."""
        name = next(self._names)
        here, there = Pipe()
        if reporter := self._session.config.pluginmanager.get_plugin("terminalreporter"):
            reporter.flush()
        if pid := os.fork():
            there.close()
            self._members[here] = _Member(pid)
            self._supply(here)
            return False
        for connection in (here, *self._members):
            connection.close()
        self._members.clear()
        _Worker(self._session, there, name).run()
        return True

    def _supply(self, connection: Connection) -> None:
        """Send tests until the worker has two, because the end of a test depends on the next one; none is the end."""
        member = self._members[connection]
        while len(member.sent) < 2 and not member.is_ending:
            numbers = self._take(member)
            member.sent.extend(numbers)
            member.is_ending = not numbers
            with contextlib.suppress(OSError):  # it is dead, which is found out when it is heard
                connection.send(numbers)

    def _take(self, member: _Member) -> list[int]:
        if self._session.shouldfail or self._session.shouldstop:
            return []
        if not member.reserved:
            if self._files:
                member.reserved = self._files.popleft()
            else:
                other = max(self._members.values(), key=lambda each: len(each.reserved)).reserved
                member.reserved.extend(reversed([other.pop() for _ in range((len(other) + 1) // 2)]))
        size = min(len(member.reserved), max(1, min(_AT_ONCE, len(member.reserved) // 4)))
        return [member.reserved.popleft() for _ in range(size)]

    def _report(self, connection: Connection, reports: list[dict], caught: list[tuple]) -> None:
        """Report a test that a worker has run."""
        hook, config = self._session.config.hook, self._session.config
        item = self._session.items[self._members[connection].sent.popleft()]
        self._supply(connection)
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports:
            hook.pytest_runtest_logreport(report=hook.pytest_report_from_serializable(config=config, data=report))
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        for text, place, line, when in caught:
            message = warnings.WarningMessage(text, UserWarning, place, line)
            arguments = {"warning_message": message, "nodeid": item.nodeid, "when": when, "location": None}
            hook.pytest_warning_recorded.call_historic(kwargs=arguments)

    def _is_lost(self, connection: Connection) -> bool:
        """Forget a worker that has ended, and return whether it ended in the middle of its tests."""
        member = self._members.pop(connection)
        connection.close()
        _, status = os.waitpid(member.pid, 0)
        if not member.sent:
            return False
        item = self._session.items[member.sent.popleft()]
        self._files.extendleft(each for each in (member.reserved, member.sent) if each)
        text = f"the worker ended in this test with {os.waitstatus_to_exitcode(status)}"
        hook, report = item.ihook, pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        hook.pytest_runtest_logreport(report=report)
        return True


def _receive(connection: Connection) -> tuple[list[dict], list[tuple]] | None:
    """Return what a worker has sent: the reports of a test, and the warnings; None if the worker has ended."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None


class _Worker:
    """This process, as a worker: a plugin that sends all reports.

    Args:
        session: the session with all tests.
        connection: the first process, which sends numbers of tests, and gets the reports of each test.
        name: the number of the worker.
    """

    def __init__(self, session: pytest.Session, connection: Connection, name: int) -> None:
        self._session, self._connection = session, connection
        self._reports: list[dict] = []
        self._caught: list[tuple] = []
        config, plugins = session.config, session.config.pluginmanager
        config.workerinput = {"workerid": f"gw{name}"}  # as with xdist: plugins leave their files to the first process
        capture = plugins.get_plugin("capturemanager")
        if capture.is_globally_capturing():  # into the files of the first process
            capture.stop_global_capturing()
            capture.start_global_capturing()
        junitxml.pytest_unconfigure(config)
        for plugin in plugins.get_plugins():
            if type(plugin).__module__ in {"_pytest.terminal", "_pytest.terminalprogress"}:
                plugins.unregister(plugin)
        plugins.register(_Terminal(), "terminalreporter")
        factory = config._tmp_path_factory
        factory._basetemp = factory.getbasetemp() / f"worker-{name}"
        factory._basetemp.mkdir(0o700)
        plugins.register(self)

    def run(self) -> None:
        """Run tests until there are no more."""
        numbers: deque[int] = deque()
        is_more = True
        with contextlib.suppress(EOFError, OSError):  # the first process has ended
            while is_more or numbers:
                while is_more and len(numbers) < 2:
                    received = self._connection.recv()
                    is_more = bool(received)
                    numbers.extend(received)
                if numbers:
                    item = self._session.items[numbers.popleft()]
                    after = self._session.items[numbers[0]] if numbers else None
                    item.ihook.pytest_runtest_protocol(item=item, nextitem=after)
                    self._connection.send((self._reports, self._caught))
                    self._reports, self._caught = [], []

    def pytest_runtest_logreport(self, report):
        config = self._session.config
        self._reports.append(config.hook.pytest_report_to_serializable(config=config, report=report))

    def pytest_warning_recorded(self, warning_message, when):
        message = warning_message
        self._caught.append((str(message.message), message.filename, message.lineno, when))


class _Terminal:
    """What plugins write to the terminal of a worker: it is part of the test's standard error."""

    def __init__(self) -> None:
        self._tw = TerminalWriter(sys.stderr)
