"""An error of a database or a bucket while a record is read is not damage: exit code 13, with the message that came."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import psycopg
import pytest
from obstore.exceptions import GenericError, PermissionDeniedError

from flowckpt.stores.objects import bucket
from flowckpt.stores.postgres import database
from flowckpt.stores.sqlite.database import SqliteSession
from tests.in_process import run_command
from tests.stores.test_read_errors import PROGRAM

COMMANDS = [
    *(["show", "one"], ["list"], ["plan", "one"], ["store", "check"], ["store", "check", "one"], ["store", "stats"]),
    *(["export", "one"], ["copy", "--all", "--to", "file:other"], ["store", "prune", "--keep", "1"]),
    *(
        ["fork", "one", "--id", "new"],
        ["recover"],
        ["diff", "one", "two"],
        ["verify", "one"],
        ["report", "one"],
        ["resume", "one"],
    ),
]


STORES = {"sqlite": "sqlite:s.db", "bucket": "objects+file:bucket?allow_unsafe=true"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("stores")


@pytest.fixture(scope="module")
def shell(directory: Path):
    """A function that runs a command with one of the stores, each of which has two runs."""
    (directory / "p.py").write_text(PROGRAM)
    env = {key: value for key, value in os.environ.items() if not key.startswith("FLOWCKPT")}
    env["PYTHONPATH"] = str(directory)

    def run(store: str, *words: str) -> tuple[int, str]:
        code, out, err = run_command([*words], cwd=directory, env={**env, "FLOWCKPT_STORE": store})
        return code, out + err

    for store in STORES.values():
        for name in ("one", "two"):
            assert run(store, "run", "p.py", "--id", name)[0] == 0
    return run


def is_reported(found: tuple[int, str], message: str) -> None:
    code, said = found
    assert "corrupt" not in said
    assert "Traceback" not in said
    assert code == 13, said
    assert message in said


def sqlite_error(message: str, name: str, kind=sqlite3.OperationalError) -> sqlite3.Error:
    error = kind(message)
    error.sqlite_errorname, error.sqlite_errorcode = name, getattr(sqlite3, name, 1)
    return error


SQLITE_ERRORS = {
    "SQLITE_IOERR_READ": "disk I/O error",
    "SQLITE_IOERR_FSTAT": "disk I/O error",
    "SQLITE_IOERR_SHMMAP": "disk I/O error",
    "SQLITE_IOERR_ACCESS": "disk I/O error",
    "SQLITE_CANTOPEN": "unable to open database file",
    "SQLITE_NOMEM": "out of memory",
    "SQLITE_PROTOCOL": "locking protocol",
}


@pytest.mark.parametrize("name", SQLITE_ERRORS)
def test_an_error_of_a_database_file_is_reported_as_what_it_is(shell, monkeypatch, name):
    store = STORES["sqlite"]

    def failing(self, *given):
        raise sqlite_error(SQLITE_ERRORS[name], name)

    with monkeypatch.context() as patched:
        patched.setattr(SqliteSession, "execute", failing)
        for words in COMMANDS:
            is_reported(shell(store, *words), SQLITE_ERRORS[name])
    assert shell(store, "store", "check")[0] == 0


OBJECT_ERRORS = {
    "500": "Server error: 500 Internal Server Error",
    "403": "Client error with status 403 Forbidden: <Error><Code>AccessDenied</Code></Error>",
    "timeout": "HTTP error: request or response body error: operation timed out",
    "reset": "HTTP error: connection reset by peer",
    "EIO": "Unable to access metadata: Input/output error (os error 5)",
    "EMFILE": "Unable to open file: Too many open files (os error 24)",
}


@pytest.mark.parametrize("name", OBJECT_ERRORS)
def test_an_error_of_a_bucket_is_reported_as_what_it_is(shell, monkeypatch, name):
    store = STORES["bucket"]
    kind = PermissionDeniedError if name == "403" else GenericError

    def failing(*given, **more):
        raise kind(OBJECT_ERRORS[name])

    with monkeypatch.context() as patched:
        for request in ("get", "list", "list_with_delimiter", "head"):
            patched.setattr(bucket.obstore, request, failing)
        make = bucket.Bucket.__init__
        patched.setattr(bucket.Bucket, "__init__", lambda self, *given, **_: make(self, *given, patience_seconds=0.0))
        for words in COMMANDS:
            is_reported(shell(store, *words), name if name.isdigit() else OBJECT_ERRORS[name].rpartition(": ")[2])
    assert shell(store, "store", "check")[0] == 0


def test_an_error_of_a_server_is_reported_as_what_it_is(shell, postgres, postgres_database, monkeypatch):

    store = f"{postgres.url(postgres_database)}?allow_unsafe=true"
    for run in ("one", "two"):
        assert shell(store, "run", "p.py", "--id", run)[0] == 0

    def failing(self, *given):
        raise psycopg.errors.IoError("could not read block 0 in file: Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(database.PostgresSession, "execute", failing)
        for words in COMMANDS:
            is_reported(shell(store, *words), "Input/output error")
    assert shell(store, "store", "check")[0] == 0


class Failing:
    """Fails from the n-th call on."""

    def __init__(self, real, number, error):
        self.real, self.number, self.error, self.calls = real, number, error, 0

    def __call__(self, *given, **more):
        self.calls += 1
        if self.calls >= self.number:
            raise self.error
        return self.real(*given, **more)


NUMBERS = [2, 3, 5, 8, 13, 21]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("medium", ["sqlite", "bucket"])
def test_an_error_in_the_middle_of_a_command_is_reported_as_what_it_is(shell, monkeypatch, medium, number):
    store = STORES[medium].replace("s.db", f"{number}.db").replace("bucket", f"bucket-{number}")
    for name in ("one", "two"):
        assert shell(store, "run", "p.py", "--id", name)[0] == 0
    make = bucket.Bucket.__init__
    for words in COMMANDS:
        words = [f"{each}-{medium}-{number}" if each in ("new", "file:other") else each for each in words]
        with monkeypatch.context() as patched:
            patched.setattr(
                bucket.Bucket, "__init__", lambda self, *given, **_: make(self, *given, patience_seconds=0.0)
            )
            if medium == "sqlite":
                error = sqlite_error("disk I/O error", "SQLITE_IOERR_READ")
                failing = [Failing(SqliteSession.execute, number, error)]
                patched.setattr(SqliteSession, "execute", lambda self, *given, call=failing[0]: call(self, *given))
            else:
                error, failing = GenericError("HTTP error: connection reset by peer"), []
                for request in ("get", "list", "list_with_delimiter", "head"):
                    failing.append(Failing(getattr(bucket.obstore, request), number, error))
                    patched.setattr(bucket.obstore, request, failing[-1])
            code, said = shell(store, *words)
        assert "corrupt" not in said, words
        assert "Traceback" not in said, words
        has_failed = any(each.calls >= each.number for each in failing)
        is_said = "disk I/O error" in said or "connection reset by peer" in said
        if words[0] == "report" and has_failed and code == 0:  # the run is shown, and others are not compared with it
            assert is_said
        elif words[0] == "fork" and has_failed and code == 0:  # it failed to look for a new owner after its last save
            assert medium == "bucket" and "is a fork of one" in said
        else:
            assert (code, is_said) == ((13, True) if has_failed else (0, False)), (words, said)
