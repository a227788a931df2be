"""A document is made by anybody: an imported run does nothing until a person has looked at it and resumed it."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_terminal import Terminal

PROGRAM = """
from pathlib import Path
from flowckpt import step, workflow

Path("imported").touch()

def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")
    return line

@workflow
def reviewed():
    yield step("write").python(note, "write").checkpoint()
    found = yield step("review").approval()
    yield step("publish").python(note, f"published by {found.by}").checkpoint()

@workflow
def asks():
    data = yield step("ask").wait("go")
    yield step("take").python(note, f"took {data}").checkpoint()
"""
THERE = ("--store", "file:there")


@pytest.fixture
def forged(flowckpt, tmp_path):
    """A document of a run that says that it is running, and that somebody approved it."""
    (tmp_path / "program.py").write_text(PROGRAM)
    flowckpt("run", "program.py:reviewed", "--id", "one").expect(3)
    flowckpt("approve", "one", "review", "--by", "mallory").expect(0)
    flowckpt("resume", "one").expect(0)
    flowckpt("export", "one", "--checkpoint", "review", "-o", "one.json").expect(0)
    flowckpt("import", "one.json", "--id", "one", *THERE).expect(0)
    (tmp_path / "log").unlink()
    (tmp_path / "imported").unlink()
    return flowckpt


def log(tmp_path):
    return (tmp_path / "log").read_text().split("\n")[:-1] if (tmp_path / "log").exists() else []


def test_recover_leaves_an_imported_run_alone(forged, tmp_path):
    said = forged("recover", *THERE).expect(0)
    assert "no run" in said.err
    assert log(tmp_path) == []
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["plan", "one"], 2),
        (["resume", "one", "--plan"], 2),
        (["plan", "one", "write"], 2),
        (["show", "one"], 0),
        (["verify", "one"], 0),
        (["cancel", "one"], 2),
        (["fork", "one", "--set", "write=1"], 2),
        (["rollback", "one", "review"], 0),
        (["resume", "one"], 2),
    ],
)
def test_nothing_imports_the_program_that_a_document_names(forged, tmp_path, command, code):
    said = forged(*command, *THERE).expect(code)
    assert not (tmp_path / "imported").exists()
    assert log(tmp_path) == []
    if code:
        assert "was imported" in said.err and "program.py:reviewed" in said.err and str(tmp_path) in said.err


def test_a_person_who_names_the_program_sees_the_plan(forged, tmp_path):
    document = forged("plan", "one", "--target", "program.py:reviewed", "--json", *THERE).expect(10).document
    assert [(each["path"], each["decision"]) for each in document["steps"]][:2] == [
        ("write", "reuse"),
        ("review", "rerun"),
    ]
    assert "it was imported" in json.dumps(document["steps"][1]["reasons"])


def test_show_and_import_say_that_the_run_is_held(forged):
    said = forged("import", "one.json", "--id", "two", *THERE).expect(0)
    assert "held" in said.out and "--accept-import" in said.err
    assert "held" in forged("show", "two", *THERE).expect(0).out


def test_a_forged_approval_is_asked_for_again_and_only_then_counts(forged, tmp_path):
    forged("resume", "one", "--accept-import", *THERE).expect(3)
    assert log(tmp_path) == []
    forged("recover", *THERE).expect(0)
    assert log(tmp_path) == []
    forged("approve", "one", "review", "--by", "ann", *THERE).expect(0)
    forged("recover", *THERE).expect(0)
    assert log(tmp_path) == ["published by ann"]
    assert forged("show", "one", "--json", *THERE).expect(0).document["status"] == "completed"


def test_a_forged_signal_is_asked_for_again(forged, tmp_path):
    forged("run", "program.py:asks", "--id", "s").expect(3)
    forged("signal", "s", "go", "--data", '"mine"').expect(0)
    forged("resume", "s").expect(0)
    forged("export", "s", "--checkpoint", "ask", "-o", "s.json").expect(0)
    (tmp_path / "log").unlink()
    forged("import", "s.json", "--id", "s", *THERE).expect(0)
    forged("resume", "s", "--accept-import", *THERE).expect(3)
    forged("signal", "s", "go", "--data", '"yours"', *THERE).expect(0)
    forged("resume", "s", *THERE).expect(0)
    assert log(tmp_path) == ["took yours"]


@pytest.mark.parametrize(("typed", "code"), [("n\n", 2), ("y\n", 3)])
def test_a_person_at_a_terminal_is_shown_target_and_directory_and_asked(forged, tmp_path, typed, code):
    terminal = Terminal(forged, "resume", "one", *THERE)
    terminal.read_until("[y/N]")
    assert not (tmp_path / "imported").exists()
    assert "program.py:reviewed" in terminal.text.replace("\r\n", "") and str(tmp_path) in terminal.text.replace(
        "\r\n", ""
    )
    terminal.type(typed)
    assert terminal.end() == code
    assert (tmp_path / "imported").exists() is (code == 3)


def test_a_completed_run_that_was_imported_stays_completed(forged, tmp_path):
    forged("export", "one", "-o", "one.run").expect(0)
    forged("import", "one.run", "--id", "whole", *THERE).expect(0)
    assert forged("resume", "whole", "--accept-import", "--json", *THERE).expect(0).document["status"] == "completed"
    assert log(tmp_path) == []


def test_what_was_exported_again_is_the_same_and_held_again(forged, tmp_path):
    forged("export", "one", "-o", "there.run", *THERE).expect(0)
    forged("import", "there.run", "--id", "again", *THERE).expect(0)
    assert "is identical" in forged("import", "there.run", "--id", "again", *THERE).expect(0).out
    forged("resume", "again", *THERE).expect(2)
    assert b'"imported"' not in (tmp_path / "there.run").read_bytes()
