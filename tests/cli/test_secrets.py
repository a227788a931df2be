"""Secret inputs from the shell: where they come from, and what is said where they are missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from test_terminal import Terminal

PROGRAM = """
import os
from flowckpt import Secret, step, workflow

def load(token, pin):
    if not os.path.exists("ready"):
        raise ValueError("not ready")
    return [len(token.reveal()), token.reveal()[0], type(pin and pin.reveal()).__name__]

@workflow
def upload(token: Secret[str], pin: Secret[int] | None = None, limit: int = 3):
    return (yield step("load").python(load, token, pin).checkpoint())
"""


@pytest.fixture
def upload(flowckpt):
    (flowckpt.directory / "upload.py").write_text(PROGRAM)
    (flowckpt.directory / "ready").touch()
    (flowckpt.directory / "token").write_text("hunter2\n")
    (flowckpt.directory / "inputs.json").write_text('{"token": "@file:token", "pin": 4711, "limit": 5}')
    return flowckpt


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["-i", "token=@env:MY_TOKEN"], [7, "h", "NoneType"]),
        (["-i", "token=@file:token"], [7, "h", "NoneType"]),
        (["-i", "token=-"], [7, "h", "NoneType"]),
        (["-i", "token=hunter2", "-i", "pin=4711"], [7, "h", "int"]),
        (["--inputs", "inputs.json"], [7, "h", "int"]),
        ([], [5, "o", "NoneType"]),
        (["--inputs", "inputs.json", "-i", "token=@env:FLOWCKPT_SECRET_TOKEN"], [5, "o", "int"]),
    ],
    ids=["variable", "file", "standard input", "typed", "file of inputs", "its own variable", "over the file"],
)
def test_a_secret_comes_from_where_nobody_sees_it(upload, arguments, output):
    environ = {"MY_TOKEN": "hunter2", "FLOWCKPT_SECRET_TOKEN": "other"}
    ran = upload("run", "upload.py", "--json", *arguments, stdin="hunter2\nmore", **environ).expect(0)
    assert ran.document["output"] == output
    assert "hunter2" not in ran.out + ran.err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("token=@env:NOBODY_SET_IT", "names the environment variable 'NOBODY_SET_IT', which is not set"),
        ("token=@file:nowhere", "cannot be read from the file 'nowhere': No such file"),
        ("token=@file:.", "cannot be read from the file '.': Is a directory"),
        ("token=@vault:x", "neither @env:NAME nor @file:PATH"),
        ("token=-", "from standard input, which is empty"),
        ("pin=hunter2", "'pin' of workflow 'upload' must be an integer, got (hidden)"),
        ("pin=@file:token", "'pin' of workflow 'upload' must be an integer, got (hidden)"),
        ("limit=x", "input 'limit' of workflow 'upload' must be an integer"),
        ("pin=1", "lacks its input 'token'"),
    ],
)
def test_what_is_wrong_with_it_is_said_without_its_value(upload, given, said):
    ran = upload("run", "upload.py", "-i", given, FLOWCKPT_TRACEBACK="1").expect(2)
    assert said in ran.err
    assert "hunter2" not in ran.out + ran.err.replace(f"-i {given}", "")


def test_given_twice_it_is_not_shown(upload):
    ran = upload("run", "upload.py", "-i", "token=hunter2", "-i", "token=hunter3").expect(2)
    assert "given twice" in ran.err and "hunter" not in ran.err


def test_a_resume_without_it_names_it_and_the_command_that_goes_on(upload):
    (upload.directory / "ready").unlink()
    upload("run", "upload.py", "-i", "token=hunter2", "--id", "one").expect(1)
    (upload.directory / "ready").touch()
    for arguments in (["one"], ["--last"], ["one", "--json"]):
        ran = upload("resume", *arguments).expect(2)
        assert "the secret input 'token' of run 'one' must be given again" in ran.err
        assert ran.document["exit_code"] == 2 if "--json" in arguments else ran.out == ""
        assert "flowckpt resume -i token=@env:TOKEN one" in ran.err
    upload("resume", "one", "-i", "token=@env:TOKEN", TOKEN="hunter3").expect(0)
    upload("resume", "one").expect(0)  # it is complete, and asks for nothing
    shown = upload("show", "one", "--json").expect(0).document
    assert shown["inputs"] == {"token": {"$secret": True}, "pin": None, "limit": 3}


@pytest.mark.parametrize("command", [["plan"], ["plan", "load"], ["verify"], ["resume", "--plan"]], ids=" ".join)
def test_what_runs_nothing_does_not_ask_for_it(upload, command):
    (upload.directory / "ready").unlink()
    upload("run", "upload.py", "-i", "token=hunter2", "--id", "one").expect(1)
    name, *options = command
    ran = upload(name, "one", *options)
    assert ran.code in (0, 10)
    assert "secret" not in ran.err


def test_a_rollback_and_a_fork_do_not_ask_for_it(upload):
    upload("run", "upload.py", "-i", "token=hunter2", "--id", "one").expect(0)
    upload("rollback", "one", "@started").expect(0)
    upload("fork", "one", "--id", "two", "-i", "limit=4").expect(0)
    upload("resume", "two").expect(2)
    assert upload("resume", "two", "--json", FLOWCKPT_SECRET_TOKEN="abc").expect(0).document["output"][0] == 3


def test_on_a_terminal_it_is_asked_for_and_not_shown(upload):
    (upload.directory / "ready").unlink()
    terminal = Terminal(upload, "run", "upload.py", "--id", "one")
    terminal.read_until("token (secret, not shown)")
    terminal.type("hunter2\n")
    assert terminal.end() == 1
    assert "not ready" in terminal.text and "hunter2" not in terminal.text
    (upload.directory / "ready").touch()
    terminal = Terminal(upload, "resume", "one", "--json")
    terminal.read_until("token (secret, not shown)")
    terminal.type("hunter2\n")
    assert terminal.end() == 0
    assert "hunter2" not in terminal.text and '"output": [7, "h", "NoneType"]' in terminal.text


def test_ctrl_c_at_the_question_stops_before_anything_is_done(upload):
    terminal = Terminal(upload, "run", "upload.py", "--id", "one")
    terminal.read_until("token (secret, not shown)")
    terminal.type("\x03")
    assert terminal.end() == 130
    upload("show", "one").expect(12)


def test_it_is_asked_for_again_until_something_is_typed_and_only_when_it_can_be(upload):
    """What is typed as soon as the question is there is not lost: the terminal shows nothing any more by then."""
    terminal = Terminal(upload, "run", "upload.py", "--id", "one", "--json")
    assert terminal.is_showing
    terminal.read_until("token (secret, not shown)")
    assert not terminal.is_showing
    terminal.type("\n")
    terminal.read_until("token (secret, not shown): \r\ntoken (secret, not shown): ")
    terminal.type("hunter2\n")
    assert terminal.end() == 0
    assert "hunter2" not in terminal.text


def test_the_default_of_a_secret_is_not_shown(upload):
    (upload.directory / "upload.py").write_text(
        PROGRAM.replace("Secret[int] | None = None", "Secret[int] = Secret(471147)")
    )
    ran = upload("run", "upload.py", "-i", "unknown=1").expect(2)
    assert "471147" not in ran.err and "pin" in ran.err


def test_the_record_holds_it_nowhere(upload):
    upload("run", "upload.py", "-i", "token=hunter2", "--id", "one").expect(0)
    exported = json.dumps(upload("export", "one").expect(0).document)
    assert '"$secret": true' in exported and "hunter2" not in exported


KNOWN = 'hunter2/@"%+ö'
WAITS = """
from flowckpt import Secret, step, workflow

@workflow
def waits(token: Secret[str], note: str = "", code: int = 0):
    yield step("a").python(len, "x").checkpoint()
    yield step("go").wait("go")
    yield step("ok").approval("Go?")
"""


@pytest.mark.parametrize(
    "words",
    [
        ("signal", "one", "go", "--data", json.dumps({"a": [KNOWN]})),
        ("signal", "one", "go", "--data", "1", "--by", KNOWN),
        ("signal", "one", "go", "--id", f"x{KNOWN}"),
        ("signal", "one", f"go{KNOWN}"),
        ("approve", "one", "ok", "--comment", f"see {KNOWN}"),
        ("reject", "one", "ok", "--by", KNOWN.replace("/", "%2F")),
        ("tag", "one", f"a={KNOWN}"),
        ("tag", "one", f"{KNOWN.replace('=', '')}=a"),
        ("import", "file", "--id", f"x{KNOWN}"),
        ("copy", "one", "--to", "file:other", "--id", f"x{KNOWN}"),
        ("fork", "one", "--id", f"x{KNOWN}"),
        ("fork", "one", "-i", f"note={KNOWN}"),
        ("fork", "one", "-i", "code=471199"),
        ("fork", "one", "--set", f"a={json.dumps(KNOWN)}"),
        ("resume", "one", "--done", f"a={json.dumps(KNOWN)}"),
        ("resume", "one", "--done", "a=1", "--comment", f"see {KNOWN}"),
    ],
    ids=" ".join,
)
def test_what_a_person_gives_a_command_may_hold_no_secret_of_the_environment(flowckpt, words):
    (flowckpt.directory / "waits.py").write_text(WAITS)
    given = {"FLOWCKPT_SECRET_TOKEN": KNOWN, "FLOWCKPT_SECRET_PIN": "471199"}
    flowckpt("run", "waits.py", "--id", "one", **given).expect(3)
    said = flowckpt(*words, **given).expect(2)
    assert "contains the value of a secret input" in said.err
    assert "hunter2" not in said.err
    for file in flowckpt.directory.rglob("*"):
        assert file.suffix == ".py" or not file.is_file() or b"hunter2" not in file.read_bytes(), file


CARRIES = """
import os
from flowckpt import step, workflow

def load(size):
    return os.environ.get("WORD", "none ") * size

@workflow
def carries(note: str = "", size: int = 1):
    yield step("load").python(load, size).checkpoint()
"""


@pytest.mark.parametrize("checkpoint", [False, True], ids=["whole run", "one checkpoint"])
@pytest.mark.parametrize(
    ("words", "environ", "place"),
    [
        (["-i", f"note={KNOWN}"], {}, "inputs.note"),
        (["--tag", f"a={KNOWN}"], {}, "tags.a"),
        ([], {"WORD": KNOWN}, "step 'load': output"),
        (["-i", "size=9000"], {"WORD": KNOWN}, ""),
        (["--id", KNOWN], {}, "run: id"),
    ],
    ids=["input", "tag", "output", "large value", "id"],
)
def test_a_file_with_a_secret_of_the_environment_is_not_imported(flowckpt, words, environ, place, checkpoint):
    if place == "run: id" and checkpoint:
        pytest.skip("the document of a checkpoint does not hold the id of its run")
    (flowckpt.directory / "carries.py").write_text(CARRIES)
    run = flowckpt("run", "carries.py", "--json", *words, **environ).expect(0).document["workflow_id"]
    flowckpt("export", run, *(["--checkpoint", "load"] if checkpoint else []), "-o", "file").expect(0)
    refused = flowckpt("import", "file", "--store", "file:other", FLOWCKPT_SECRET_TOKEN=KNOWN).expect(2)
    assert "contains the value of a secret input, which would be recorded" in refused.err
    assert place in refused.err and "hunter2" not in refused.err
    assert not (flowckpt.directory / "other").exists()
    flowckpt("import", "file", "--store", "file:other", FLOWCKPT_SECRET_TOKEN="another-secret").expect(0)


def test_where_the_program_of_an_imported_run_is_may_contain_a_secret(flowckpt):
    (flowckpt.directory / "carries.py").write_text(CARRIES)
    flowckpt("run", "carries.py", "--id", "one").expect(0)
    flowckpt("export", "one", "-o", "file").expect(0)
    flowckpt("import", "file", "--store", "file:other", FLOWCKPT_SECRET_FILE="carries.py").expect(0)
