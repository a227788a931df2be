"""Runs whose records cannot be read: the others are told, these are named, and the exit code is 11."""

from __future__ import annotations

import errno
import sqlite3

import pytest

from flowckpt.core.system.filesystem import PosixFileSystem
from flowckpt.stores.file.layout import run_directory
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
    assert "copied two" in ran.out and "the record of run 'one' is corrupt" in ran.err
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
        assert "flowckpt: " + ("the record of run 'two' is" if words[0] == "copy" else "two is left out") in ran.err
        assert "'flowckpt store check --store sqlite:runs.db'" in ran.err
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


def test_the_files_of_a_file_manager_beside_the_runs_are_ignored(runs):
    for name in (".DS_Store", "._one", ".directory"):
        (runs.directory / ".flowckpt" / "runs" / name).write_text("icons")
    for words in (["list"], ["store", "check"], ["store", "stats"], ["store", "prune"], ["recover"]):
        ran = runs(*words).expect(0)
        assert "icons" not in ran.err and ".directory" not in ran.err + ran.out and "._one" not in ran.err + ran.out


# --- a backup: whatever is missing in it is reported -------------------------------------------------------------------


def copied(command, **settings):
    """Copy all runs; return the exit code, and the type of the error of each run."""
    ran = command("copy", "--all", "--to", "file:backup", "--json", **settings)
    assert command("copy", "--all", "--to", "file:backup", **settings).code == ran.code
    return ran.code, {each["source_id"]: each["error"] and each["error"]["type"] for each in ran.document}


def test_a_run_that_is_missing_in_a_backup_is_an_item_with_its_error(runs):
    assert copied(runs) == (0, {"one": None, "two": None})
    damage(runs, "two")
    assert copied(runs) == (11, {"one": None, "two": "CheckpointCorruptedError"})


def test_a_backup_without_a_rotated_key_fails(flowckpt):
    flowckpt("store", "key", "new", "key").expect(0)
    new, old = {"FLOWCKPT_KEY_FILE": "key"}, {"FLOWCKPT_KEY_FILE": "old"}
    flowckpt("run", "pipeline.py:naps", "--id", "one", **new).expect(0)
    (flowckpt.directory / "old").write_bytes((flowckpt.directory / "key").read_bytes())
    (flowckpt.directory / "old").chmod(0o600)
    flowckpt("store", "key", "rotate", "key").expect(0)
    flowckpt("run", "pipeline.py:naps", "--id", "two", **new).expect(0)
    assert copied(flowckpt, **old) == (2, {"one": None, "two": "WrongKeyError"})
    assert "two is left out" in flowckpt("list", **old).expect(0).err
    assert copied(flowckpt, **new) == (0, {"one": None, "two": None})


@pytest.mark.parametrize("name", ["two", "Two"], ids=["with an id that is its name", "with another id"])
def test_a_backup_without_the_directory_of_a_run_fails(runs, name, monkeypatch):
    if name == "Two":
        runs("run", "pipeline.py:naps", "--id", "Two").expect(0)
    directory = run_directory(name)
    whole = PosixFileSystem.open_directory

    def open_directory(self, parent, opened):
        if opened == directory:
            raise PermissionError(errno.EACCES, "Permission denied", opened)
        return whole(self, parent, opened)

    monkeypatch.setattr(PosixFileSystem, "open_directory", open_directory)
    code, errors = copied(runs)
    assert (code, errors.pop(directory), errors.pop("one")) == (13, "CheckpointStorageError", None)
    assert not any(errors.values())
    assert f"{directory} is left out" in runs("list").expect(0).err
    assert f"locked: {directory}: " in runs("store", "check").expect(2).out


# --- an address without a store ---------------------------------------------------------------------------------------


def test_a_backup_of_a_mistyped_address_fails(runs):
    for place in ("./nosuch", "sqlite:nosuch.db"):
        ran = runs("copy", "--all", "--store", place, "--to", "file:backup", "--json").expect(12)
        assert ran.document == [] and "no runs in" in ran.err and "there is no store yet" in ran.err
        ran = runs("store", "check", "--store", place).expect(0)
        assert "there is no store yet" in ran.err and "stored in" not in ran.err
    assert sorted(each.name for each in runs.directory.iterdir()) == [".flowckpt", "log", "pipeline.py"]
    for name in ("one", "two"):
        runs("store", "clear", name, "--yes").expect(0)
    ran = runs("copy", "--all", "--to", "file:backup", "--json").expect(0)
    assert ran.document == [] and "no runs in" in ran.err and "no store" not in ran.err


@pytest.mark.parametrize("typed", [".", "file:.flowckpt/runs", "file:.flowckpt/runs/two"])
def test_the_likely_address_is_named(runs, typed):
    for words in (["list"], ["store", "check"], ["copy", "--all", "--to", "file:backup"]):
        assert f"Did you mean file:{runs.directory}/.flowckpt?\n" in runs(*words, "--store", typed).err
    assert "Did you mean" not in runs("list", "--store", "./nosuch").expect(0).err


def test_a_home_that_no_shell_has_expanded_is_expanded(runs):
    home = {"HOME": str(runs.directory)}
    for typed in ("~/.flowckpt", "file:~/.flowckpt"):
        assert len(runs("list", "--json", "--store", typed, **home).expect(0).document) == 2
        assert len(runs("list", "--json", FLOWCKPT_STORE=typed, **home).expect(0).document) == 2
