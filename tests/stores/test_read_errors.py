"""An error of the system while a record is read is not damage: exit code 13, with the system's message."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import attrs
import pytest

from flowckpt.core.records import Reason, Status
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.core.system.filesystem import PosixFileSystem
from flowckpt.stores import FileCheckpointStore
from tests.in_process import run_command

PROGRAM = """
from flowckpt import step, workflow

@workflow
def w():
    yield step("a").python(len, "abc").checkpoint()
"""
ERRORS = [errno.EIO, errno.EMFILE, errno.EACCES, errno.ENOMEM, errno.ESTALE]
COMMANDS = [
    *(["show", "one"], ["list"], ["plan", "one"], ["store", "check"], ["store", "check", "one"], ["store", "stats"]),
    *(["export", "one"], ["resume", "one"], ["copy", "--all", "--to", "file:other"], ["store", "prune", "--keep", "1"]),
    *(["store", "repair", "one"], ["fork", "one", "--id", "new"], ["recover"]),
]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch):
    (tmp_path / "p.py").write_text(PROGRAM)
    env = {key: value for key, value in os.environ.items() if not key.startswith("FLOWCKPT")}
    env["PYTHONPATH"] = str(tmp_path)

    def run(*words: str) -> tuple[int, str]:
        code, out, err = run_command([*words], cwd=tmp_path, env=env)
        return code, out + err

    for name in ("one", "two"):
        assert run("run", "p.py", "--id", name)[0] == 0
    yield run


@pytest.mark.parametrize("number", ERRORS, ids=[errno.errorcode[each] for each in ERRORS])
@pytest.mark.parametrize("call", ["read", "open_read"])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_read_error_is_reported_as_what_it_is(shell, tmp_path, monkeypatch, words, call, number):
    before = {file: file.read_bytes() for file in (tmp_path / ".flowckpt").rglob("*.jsonl")}
    real = getattr(PosixFileSystem, call)
    opened: set[int] = set()

    def failing(self, *arguments):
        if call == "read" or str(arguments[1]).endswith(".jsonl"):
            raise OSError(number, os.strerror(number))
        return real(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(PosixFileSystem, call, failing)
        code, said = shell(*words)
    del opened
    assert "corrupt" not in said
    assert code == 13, said
    assert os.strerror(number) in said
    assert number != errno.EMFILE or "Repair the directory" not in said
    after = {file: file.read_bytes() for file in (tmp_path / ".flowckpt").rglob("*.jsonl")}
    assert after.items() >= before.items()


@pytest.mark.parametrize("call", ["read", "open_read"])
@pytest.mark.parametrize("words", [["list", "--json"], ["resume", "live"]])
def test_a_read_that_fails_once_never_makes_a_live_run_look_dead(shell, tmp_path, monkeypatch, words, call):
    """Each single read, one after the other: the command says what failed, or what it would have said."""
    store = FileCheckpointStore(tmp_path / ".flowckpt")
    with blocking_allowed(True):
        store.runs.acquire("live", take_over=False)
        latest = store.runs.load_run("one").latest()
        store.runs.save(
            "live", attrs.evolve(latest, sequence=1, status=Status.RUNNING, reason=Reason.STEP, output=None)
        )
    real, calls, at = getattr(PosixFileSystem, call), 0, 0

    def failing(self, *arguments):
        nonlocal calls
        calls += 1
        if calls == at:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(self, *arguments)

    monkeypatch.setattr(PosixFileSystem, call, failing)
    clean = shell(*words)
    assert calls > 1
    for each in range(1, calls + 1):
        calls, at = 0, each
        found = shell(*words)
        assert found == clean or (found[0] == 13 and os.strerror(errno.ESTALE) in found[1]), (each, found)
