"""Runs whose records cannot be read: the others are told, these are named, and the exit code is 11."""

from __future__ import annotations

import sqlite3

import pytest

from flowckpt.stores.sqlite.connection import journal_mode
from flowckpt.stores.sqlite.library import library


def damage(command, *names):
    for name in names:
        file = command.directory / ".flowckpt" / "runs" / name / "00000001.jsonl"
        file.write_bytes(b"{}" + file.read_bytes()[2:])


@pytest.fixture
def runs(flowckpt):
    for name in ("one", "two"):
        flowckpt("run", "pipeline.py:naps", "--id", name).expect(0)
    return flowckpt


@pytest.mark.parametrize("names", [("two",), ("one", "two")], ids=["some", "all"])
def test_they_are_named_by_what_lists_or_counts_or_prunes(runs, names):
    damage(runs, *names)
    left = [name for name in ("one", "two") if name not in names]
    for words in (
        ["list"],
        ["list", "--workflow", "nope"],
        ["store", "stats"],
        ["store", "prune"],
        ["store", "prune", "--keep", "9", "--dry-run"],
    ):
        ran = runs(*words).expect(11)
        for name in names:
            assert f"flowckpt: {name} is left out: its record is" in ran.err
        assert "'flowckpt store check'" in ran.err and "no such run" not in ran.err and "Traceback" not in ran.err
        assert "warning" not in ran.err  # once is enough
    assert [run["workflow_id"] for run in runs("list", "--json").expect(11).document] == left
    assert sorted(runs("store", "stats", "--json").expect(11).document["unreadable"]) == sorted(names)
    assert sorted(runs("store", "prune", "--keep", "0", "--json").expect(11).document["unreadable"]) == sorted(names)
    assert runs("store", "check", "two").expect(11)


def test_nothing_to_resume_or_to_copy_is_not_said_where_nothing_could_be_read(runs):
    damage(runs, "one")
    ran = runs("copy", "--all", "--to", "sqlite:there.db").expect(11)
    assert "copied two" in ran.out and "one is left out" in ran.err
    damage(runs, "two")
    assert "can be resumed" not in runs("resume", "--last").expect(11).err


def test_the_row_of_a_run_that_a_list_cannot_read_is_found_by_the_check(flowckpt):
    store = ("--store", "sqlite:runs.db")
    for name in ("one", "two"):
        flowckpt("run", "pipeline.py:naps", "--id", name, *store).expect(0)
    with sqlite3.connect(flowckpt.directory / "runs.db") as connection:
        connection.execute("UPDATE runs SET metadata = '{{' WHERE workflow_id = 'two'")
    connection.close()
    for words in (["list"], ["store", "prune"], ["copy", "--all", "--to", "file:there"]):
        ran = flowckpt(*words, *store).expect(11)
        assert "flowckpt: two is left out" in ran.err and "'flowckpt store check --store sqlite:runs.db'" in ran.err
    ran = flowckpt("store", "check", *store).expect(11)
    assert "corrupt: two: the record of run 'two' is corrupt at runs" in ran.out and "ok: one: " in ran.out
    assert f"is stored in {library()}, journal mode {journal_mode()[0]}\n" in ran.err


def test_a_file_that_is_no_database_is_named_once_and_as_the_fault_of_the_target(runs):
    ran = runs("copy", "--all", "--to", "sqlite:pipeline.py").expect(11)
    assert ran.err.count("pipeline.py, the store to copy to") == ran.err.count("it is not a SQLite database") == 1
    assert "record of run" not in ran.err and ran.out == ""
    ran = runs("store", "check", "--store", "sqlite:pipeline.py").expect(11)
    assert ran.out.count("it is not a SQLite database") == 1
    assert (
        "it is not a SQLite database" in runs("run", "pipeline.py:naps", "--store", "sqlite:pipeline.py").expect(11).err
    )


def test_directories_of_a_store_are_made_by_a_copy_as_by_a_run(runs):
    runs("copy", "one", "--to", "sqlite:far/away/runs.db").expect(0)
    runs("run", "pipeline.py:naps", "--id", "three", "--store", "sqlite:away/runs.db").expect(0)
    assert (runs.directory / "far/away/runs.db").is_file() and (runs.directory / "away/runs.db").is_file()


def test_the_files_of_a_file_manager_beside_the_runs_are_no_runs(runs):
    for name in (".DS_Store", "._one", ".directory"):
        (runs.directory / ".flowckpt" / "runs" / name).write_text("icons")
    for words in (["list"], ["store", "check"], ["store", "stats"], ["store", "prune"], ["recover"]):
        ran = runs(*words).expect(0)
        assert "icons" not in ran.err and ".directory" not in ran.err + ran.out and "._one" not in ran.err + ran.out
