"""An error of the system while a record is read is not damage: exit code 13, with the system's message."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from flowckpt.core.system.filesystem import PosixFileSystem
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
    after = {file: file.read_bytes() for file in (tmp_path / ".flowckpt").rglob("*.jsonl")}
    assert after.items() >= before.items()
