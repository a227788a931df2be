"""A page of a database whose read fails is an error of the disk, also where the next read of it succeeds.

SQLite itself says "malformed" of such a page. The reads are those of SQLite, made to fail one at a time.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil

import apsw
import pytest

from flowckpt.stores.sqlite.library import library
from tests.in_process import run_here
from tests.stores.test_read_errors import PROGRAM

COMMANDS = [
    *(
        ["show", "one", "--json"],
        ["list", "--json"],
        ["plan", "one"],
        ["store", "check"],
        ["store", "check", "one"],
        ["store", "stats"],
    ),
    *(
        ["export", "one"],
        ["diff", "one", "two"],
        ["verify", "one"],
        ["resume", "one"],
        ["run", "p.py:w", "--id", "new"],
    ),
    *(["store", "prune", "--keep", "1"], ["store", "clear", "two", "--yes"], ["store", "repair", "one"]),
    *(["fork", "one", "--id", "new"], ["recover"], ["signal", "waits", "go"], ["copy", "one", "--to", "file:other"]),
]


WAITS = """
@workflow
def waits():
    yield step("a").python(len, "abc").checkpoint()
    yield step("b").wait("go")
"""


PREAD = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, use_errno=True
)


class Disk:
    """The disk as SQLite sees it, whose n-th read of a file fails, and so many after it."""

    def __init__(self) -> None:
        self.name, self.number, self.times, self.reads, self.failed = "", 0, 1, 0, 0
        self.real = ctypes.CDLL(None, use_errno=True).pread64
        self.real.argtypes, self.real.restype = PREAD._argtypes_, PREAD._restype_
        self.call = PREAD(self.read)
        self.files = apsw.VFS("reached", "unix")
        assert self.files.xSetSystemCall("pread64", ctypes.cast(self.call, ctypes.c_void_p).value)

    def close(self) -> None:
        self.files.xSetSystemCall("pread64", 0)
        self.files.unregister()

    def fail(self, name: str, number: int = 0, times: int = 1) -> None:
        self.name, self.number, self.times, self.reads = name, number, times, 0

    def read(self, file, buffer, count, offset):
        if self.name and self.name in os.readlink(f"/proc/self/fd/{file}"):  # the WAL, too
            self.reads += 1
            if self.number and self.number <= self.reads < self.number + self.times:
                self.failed += 1
                ctypes.set_errno(errno.EIO)
                return -1
        return self.real(file, buffer, count, offset)


@pytest.fixture
def disk():
    assert library().name == "apsw"
    disk = Disk()
    yield disk
    disk.close()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    place = tmp_path_factory.mktemp("pristine")
    (place / "p.py").write_text(PROGRAM + WAITS)
    for name in ("one", "two"):
        assert run_in(place, "run", "p.py:w", "--id", name)[0] == 0
    assert run_in(place, "run", "p.py:waits", "--id", "waits")[0] == 3
    return place


def run_in(place, *words: str) -> tuple[int, str, str]:
    env = {"FLOWCKPT_STORE": "sqlite:s.db", "PYTHONPATH": str(place), "PATH": ""}
    return run_here([*words], cwd=place, env=env)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_read_that_fails_for_a_moment_is_no_damage(tmp_path, pristine, disk, words, times, is_soak):
    place = tmp_path / "place"

    def tried(number: int) -> tuple[int, str, str]:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(pristine, place)
        disk.fail("s.db", number, times)
        return run_in(place, *words)

    clean = tried(0)
    assert clean[0] in (0, 3), clean
    numbers = range(1, disk.reads + 1)
    assert len(numbers) > 10, "pages of the file and of its WAL"
    for number in numbers if is_soak else numbers[times :: len(numbers) // 4]:
        code, out, err = tried(number)
        assert "corrupt" not in out + err
        assert "Traceback" not in out + err
        assert code in (clean[0], 13), out + err
        if code == 13:
            assert "disk I/O error" in err or "then read without an error" in err, err
            assert len([each for each in err.splitlines() if each.startswith("flowckpt: ")]) <= 2, err
        elif "--json" in words:
            assert out == clean[1]
        disk.fail("")
        assert run_in(place, "store", "check")[0] == 0
    assert disk.failed, "some read failed, whatever the command made of it"
