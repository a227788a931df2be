"""Damage, size and scarcity end in a documented exit code and one message, never in an error of flowckpt itself."""

from __future__ import annotations

import importlib
import os
import shutil
import sqlite3
import subprocess
import sys

import pytest

from tests.cli.conftest import Command

PROGRAM = """
from flowckpt import step, workflow

def big():
    return 10 ** 5000

@workflow
def bigs(nested: bool = False):
    found = yield step("big").python(big).checkpoint()
    return [{"n": found}] if nested else found

def greedy():
    raise MemoryError("no room")

@workflow
def scarce():
    yield step("first").python(abs, -1).checkpoint()
    try:
        yield step("greedy").python(greedy).checkpoint()
    except MemoryError:
        return "handled"

@workflow
def greed():
    yield step("first").python(abs, -1).checkpoint()
    yield step("greedy").python(greedy).checkpoint()

@workflow
def waits():
    yield step("first").python(abs, -1).checkpoint()
    yield step("go").wait("go")
"""


@pytest.fixture
def sizes(tmp_path) -> Command:
    (tmp_path / "sizes.py").write_text(PROGRAM)
    return Command(tmp_path)


@pytest.mark.parametrize("nested", ["true", "false"])
def test_an_integer_of_5000_digits_is_run_shown_and_resumed(sizes: Command, nested):
    said = "<an integer of 16610 bits>"
    assert said in sizes("run", "sizes.py:bigs", "--id", "b", "-i", f"nested={nested}").expect(0).out
    assert said in sizes("show", "b").expect(0).out
    sizes("show", "b", "--steps").expect(0)
    sizes("show", "b", "--history").expect(0)
    assert said in sizes("resume", "b").expect(0).out
    sizes("plan", "b").expect(0)


def test_a_step_without_memory_fails_and_leaves_the_store_whole(sizes: Command):
    ran = sizes("run", "sizes.py:greed", "--id", "g").expect(1)
    assert "MemoryError" in ran.err and "not safe" not in ran.err
    sizes("store", "check").expect(0)
    sizes("resume", "g").expect(1)
    assert "'handled'" in sizes("run", "sizes.py:scarce", "--id", "s").expect(0).out
    assert "'handled'" in sizes("resume", "s").expect(0).out


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), ["flowckpt: out of memory; saved checkpoints are intact"]),
        (
            RuntimeError("can't start new thread"),
            [
                "flowckpt: no more threads can be started; saved checkpoints are intact",
                "Raise the limit (ulimit -u, or that of the container), or end other programs.",
            ],
        ),
    ],
    ids=["memory", "threads"],
)
def test_a_command_without_memory_or_threads_says_so(monkeypatch, capsys, error, said):
    def greedy(*arguments, **options):
        raise error

    main = importlib.import_module("flowckpt.cli.main")
    monkeypatch.setattr(main.group, "main", greedy)
    with pytest.raises(SystemExit) as ended:
        main.main(["list"])
    assert ended.value.code == 71
    assert capsys.readouterr().err.splitlines() == said


@pytest.mark.parametrize("column", ["runs.started_at", "checkpoints.saved_at", "step_results.started_at"])
@pytest.mark.parametrize("text", ["2026-99-99T00:00:00Z", "x"])
def test_a_damaged_time_in_a_database_is_damage(sizes: Command, column, text):
    sizes("run", "sizes.py:waits", "--id", "w", "--store", "sqlite:whole.db").expect(3)
    table, name = column.split(".")
    whole = sizes.directory / "whole.db"
    with sqlite3.connect(whole) as connection:
        connection.execute(f"UPDATE {table} SET {name} = ?", (text,))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # all into the one file: the command has not closed it yet
    connection.close()
    codes = {}
    for command in (
        ["store", "stats"],
        ["store", "check"],
        ["list"],
        ["show", "w"],
        ["signal", "w", "go"],
        ["export", "w"],
    ):
        shutil.copy(whole, sizes.directory / f"damaged-{len(codes)}.db")
        ran = sizes(*command, "--store", f"sqlite:damaged-{len(codes)}.db")
        assert ran.code in (0, 3, 11), (command, ran)
        assert "Traceback" not in ran.err
        codes[" ".join(command)] = ran.code
    assert codes["store check"] == 11
    if table != "step_results":
        assert codes["store stats"] == 11


@pytest.mark.parametrize(
    "command",
    [("show", "w"), ("signal", "w", "go"), ("list",), ("resume", "w"), ("store", "stats"), ("store", "check")],
)
def test_a_damaged_time_in_a_file_is_damage(sizes: Command, command):
    sizes("run", "sizes.py:waits", "--id", "w").expect(3)
    segment = sizes.directory / ".flowckpt" / "runs" / "w" / "00000001.jsonl"
    segment.write_bytes(segment.read_bytes().replace(b'"saved_at":"20', b'"saved_at":"2O', 1))
    said = sizes(*command).expect(11)
    assert "Traceback" not in said.err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full disk")
def test_events_that_a_full_disk_does_not_take_are_reported(sizes: Command):
    command = [sys.executable, "-m", "flowckpt", "run", "sizes.py:bigs", "--id", "full", "--events"]
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            command, cwd=sizes.directory, env=sizes.environment, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ran.returncode == 74, ran.stderr
    assert ran.stderr.count("standard output cannot be written") == 1
    sizes("resume", "full").expect(0)  # the run itself was not worse for it


@pytest.mark.parametrize("arguments", ["list", "run sizes.py:waits", "store stats"])
def test_too_few_open_files_are_reported_in_one_line(sizes: Command, arguments):
    command = f"ulimit -n 5; exec {sys.executable} -m flowckpt {arguments}"
    ran = subprocess.run(
        ["bash", "-c", command], cwd=sizes.directory, env=sizes.environment, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout) == (2, ""), ran
    assert len(ran.stderr.splitlines()) == 1 and "ulimit -n" in ran.stderr
