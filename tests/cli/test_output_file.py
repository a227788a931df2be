"""The file that a resumed run prints to: it takes everything, is read as it grows, and does not fill the disk."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile

import pytest

from flowckpt.cli.recoverer.child import OutputFile
from tests.small_disk import mounted_disk


@pytest.fixture
def output():
    with contextlib.closing(OutputFile()) as made:
        yield made


def text(output):
    return b"".join(output.new_chunks())


def test_what_was_printed_is_read_once_and_in_its_order(output):
    os.write(output.descriptor, b"one\n")
    assert text(output) == b"one\n"
    assert text(output) == b""
    subprocess.run(
        ["sh", "-c", "echo two; echo three >&2"], stdout=output.descriptor, stderr=output.descriptor, check=True
    )
    os.write(output.descriptor, b"four\n")
    assert text(output) == b"two\nthree\nfour\n"


def test_what_was_read_takes_no_room_on_the_disk(output):
    for _ in range(16):
        os.write(output.descriptor, os.urandom(1 << 20))
        text(output)
    assert os.fstat(output.descriptor).st_size == 16 << 20
    assert os.fstat(output.descriptor).st_blocks * 512 <= 2 << 20


def test_one_who_empties_it_by_opening_it_anew_harms_nobody(output):
    os.write(output.descriptor, b"one\n" * 100)
    assert text(output) == b"one\n" * 100
    subprocess.run(["sh", "-c", "echo two > /dev/stdout"], stdout=output.descriptor, check=True)
    assert text(output) == b"two\n"
    os.write(output.descriptor, b"three\n")
    assert text(output) == b"three\n"


def test_it_has_no_name_that_could_be_left_behind(output, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with contextlib.closing(OutputFile()) as made:
        os.write(made.descriptor, b"x")
        assert list(tmp_path.iterdir()) == []


def test_where_no_directory_takes_a_temporary_file_that_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(OSError, match="missing"):
        OutputFile()


def test_where_there_is_no_room_for_what_is_printed_that_is_said_before_anything_is_begun(monkeypatch, tmp_path):
    with mounted_disk(tmp_path / "disk", "2m") as disk:
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        (disk / "ballast").write_bytes(b"x" * (1 << 20) + b"y" * (1 << 19))
        with pytest.raises(OSError, match="No space left on device"):
            OutputFile()
        (disk / "ballast").unlink()
        with contextlib.closing(OutputFile()) as made:
            (disk / "ballast").write_bytes(b"x" * (1 << 20))
            os.write(made.descriptor, b"z" * (1 << 20))
            assert len(text(made)) == 1 << 20
