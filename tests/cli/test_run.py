"""`flowckpt run`: its document, its exit codes, and that standard output belongs to the result."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

import pytest

RESULT_KEYS = ["workflow_id", "workflow_name", "status", "output", "attempt", "steps", "duration_ms", "error"]
RESULT_KEYS += ["undone", "rollback_failures", "is_saved", "last_saved"]

FILLING = """
import resource
from flowckpt import step, workflow

def fill():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))  # as a full disk: nothing more can be written

@workflow
def filling():
    yield step("fill").python(fill).checkpoint()
"""


def test_json_is_the_promised_document_and_nothing_else(flowckpt):
    (flowckpt.directory / "ready").touch()
    ran = flowckpt("run", "pipeline.py:etl", "-i", "source=a.csv", "--id", "one", "--json").expect(0)
    document = ran.document
    assert list(document) == RESULT_KEYS
    assert document.pop("duration_ms") > 0
    assert document == {
        "workflow_id": "one",
        "workflow_name": "etl",
        "status": "completed",
        "output": 1000,
        "attempt": 1,
        "steps": {"executed": 2, "restored": 0, "failed": 0},
        "error": None,
        "undone": [],
        "rollback_failures": [],
        "is_saved": True,
        "last_saved": "@completed",
    }
    # What the user's code and its child printed is not lost: it went where the messages go.
    assert "a print of the user's" in ran.err and "a print of a child" in ran.err
    assert "fetch: done in" in ran.err


def test_events_are_json_lines(flowckpt):
    ran = flowckpt("run", "pipeline.py:etl", "-i", "source=a.csv", "--id", "one", "--events").expect(1)
    events = [json.loads(line) for line in ran.out.splitlines()]
    assert [event["event"] for event in events] == [
        "WorkflowStarted",
        "CheckpointSaved",
        "StepStarted",
        "StepCompleted",
        "CheckpointSaved",
        "StepStarted",
        "StepFailed",
        "CheckpointSaved",
        "WorkflowFailed",
    ]
    assert len(events[0].pop("birth")) == 32
    assert events[0] == {"event": "WorkflowStarted", "workflow_id": "one", "workflow_name": "etl", "attempt": 1}
    assert events[6]["error_message"] == "no file \x1b[31mready"
    assert "fetch: done in" not in ran.err


def test_a_failed_workflow_says_where_why_and_how_to_go_on(flowckpt):
    ran = flowckpt("run", "pipeline.py:etl", "-i", "source=a.csv", "--id", "it failed", "--store", "file:s").expect(1)
    assert ran.out.splitlines()[-3] == "failed: etl it failed"
    assert ran.out.splitlines()[-2] == "steps: 2 executed, 0 restored, 1 failed"
    assert "flowckpt: step 'load' failed with ValueError: no file \\x1b[31mready" in ran.err
    assert ran.err.count("Traceback") == 1 and "in load" in ran.err
    assert "flowckpt/engine" not in ran.err and "site-packages" not in ran.err
    assert ran.err.splitlines()[-1] == "Resume with: flowckpt resume --store file:s 'it failed'"
    assert "\x1b" not in ran.out + ran.err
    document = flowckpt("run", "pipeline.py:etl", "-i", "source=a.csv", "--json").expect(1).document
    assert document["status"] == "failed" and document["output"] is None
    assert document["error"]["type"] == "ValueError" and document["error"]["path"] == "load"
    assert "in load" in document["error"]["traceback"]


def test_inputs_from_the_line_from_a_file_and_from_standard_input(flowckpt):
    (flowckpt.directory / "ready").touch()
    (flowckpt.directory / "in.json").write_text('{"source": "a", "limit": 5, "color": "BLUE"}')
    run = ("run", "pipeline.py:etl", "--json")
    assert flowckpt(*run, "--inputs", "in.json", "-i", "limit=7").expect(0).document["output"] == 7
    assert flowckpt(*run, "--inputs", "-", stdin='{"source": "a", "limit": 5}').expect(0).document["output"] == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["pipeline.py:etl", "-i", "source=a", "-i", "limit=many"],
            "input 'limit' of workflow 'etl' must be an integer",
        ),
        (["pipeline.py:etl", "-i", "source=a", "-i", "color=x"], "must be one of RED, BLUE, got 'x'"),
        (["pipeline.py:etl", "-i", "sorce=a"], "has no input 'sorce'\nIts inputs: source: pathlib.Path, limit"),
        (["pipeline.py:etl"], "lacks its input 'source'"),
        (["pipeline.py:etl", "-i", "source"], "'source' is not of the form KEY=VALUE"),
        (["pipeline.py:etl", "-i", "a=1", "-i", "a=2"], "-i a=… is given twice"),
        (["pipeline.py:none"], "has no workflow 'none'\nWrite one of them after a colon: etl, naps"),
        (["nothing.py:etl"], "there is no file"),
        (["pipline.py:etl"], "Did you mean 'pipeline.py'? Check the path"),
        (["notes.md"], "notes.md is not a Python file\nName one that ends in .py"),
        (["pipeline.py"], "defines 3 workflows"),
        (["pipeline.py:naps", "--store", "runs"], "'runs' is not the description of a store\nWrite 'file:runs'"),
        (["pipeline.py:naps", "--id", "a\x1b[1m"], "--id must be 1 to 200 printable characters"),
        (["pipeline.py:naps", "--json", "--events"], "exclude each other"),
        (["pipeline.py:naps", "--bogus\x1b[1m"], "--bogus\\x1b[1m"),
        (["jobs/nightly.py"], "belongs to a package: write jobs.nightly instead, in the directory"),
        (["exits.py"], "exits.py exits when it is imported (with 3)"),
    ],
)
def test_usage_errors_exit_2(flowckpt, arguments, said):
    (flowckpt.directory / "exits.py").write_text("import sys\nsys.exit(3)\n")
    (flowckpt.directory / "notes.md").write_text("Notes.\n")
    (flowckpt.directory / "jobs").mkdir()
    (flowckpt.directory / "jobs" / "nightly.py").write_text("from . import pipeline\n")
    ran = flowckpt("run", *arguments).expect(2)
    assert said in ran.err and "Traceback" not in ran.err and "\x1b" not in ran.err
    if "--json" in arguments:
        assert json.loads(ran.out)["exit_code"] == 2
    else:
        assert ran.out == ""


def test_a_run_that_exists_exits_2_and_a_traceback_is_shown_on_request(flowckpt):
    flowckpt("run", "pipeline.py:naps", "--id", "one").expect(0)
    ran = flowckpt("run", "pipeline.py:naps", "--id", "one", FLOWCKPT_TRACEBACK="1").expect(2)
    assert "flowckpt: run 'one' exists already" in ran.err and "RunExistsError" in ran.err


def test_bad_configuration_exits_2_naming_file_and_key(flowckpt):
    (flowckpt.directory / "pyproject.toml").write_text("[tool.flowckpt]\nstore = 1\n")
    ran = flowckpt("run", "pipeline.py:naps").expect(2)
    assert f"{flowckpt.directory / 'pyproject.toml'}: tool.flowckpt.store must be text, got 1" in ran.err


def test_a_failing_store_exits_13(flowckpt):
    (flowckpt.directory / "filling.py").write_text(FILLING)
    ran = flowckpt("run", "filling.py", "--id", "one", "--json").expect(13)
    assert "flowckpt: saving run 'one'" in ran.err and "Traceback" not in ran.err
    assert ran.document["status"] == "failed"
    assert ran.document["error"]["type"] == "flowckpt.errors.CheckpointStorageError"


def test_a_store_that_cannot_be_made_exits_13(flowckpt):
    (flowckpt.directory / "taken").touch()
    assert "taken" in flowckpt("run", "pipeline.py:naps", "--store", "file:taken").expect(13).err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_standard_output_that_is_full_or_closed(flowckpt):
    with open("/dev/full", "w") as full:
        process = flowckpt.start("run", "pipeline.py:naps", "--json", stdout=full)
        assert "standard output cannot be written" in process.communicate(timeout=120)[1]
        assert process.returncode == 74
    # A closed descriptor must not be given to the record of the run.
    words = [sys.executable, "-m", "flowckpt", "run", "pipeline.py:etl", "-i", "source=a", "--id", "closed"]
    closed = subprocess.run(
        words, cwd=flowckpt.directory, env=flowckpt.environment, stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1)
    )
    assert closed.returncode == 1
    flowckpt("store", "check", "closed").expect(0)
    exported = subprocess.run(
        [*words[:3], "export", "closed"],
        cwd=flowckpt.directory,
        env=flowckpt.environment,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: os.close(1),
    )
    assert (exported.returncode, exported.stderr) == (
        74,
        b"flowckpt: standard output cannot be written: it is closed\n",
    )


def test_a_reader_that_goes_away_does_not_stop_a_run(flowckpt):
    (flowckpt.directory / "ready").touch()
    process = flowckpt.start("run", "pipeline.py:naps", "-i", "count=2000", "--events", "--id", "one")
    assert '"WorkflowStarted"' in process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=120) == 0
    assert process.stderr.read() == ""
    process.stderr.close()
    assert stat.S_ISDIR((flowckpt.directory / ".flowckpt").stat().st_mode)
    assert flowckpt("show", "one", "--json").expect(0).document["status"] == "completed"


def test_the_error_for_an_input_without_its_option_names_the_option(flowckpt):
    assert "unexpected argument 'source=a.csv'; did you mean -i source=a.csv?" in (
        flowckpt("run", "pipeline.py:etl", "source=a.csv").expect(2).err
    )
    assert "unexpected argument 'two'; see flowckpt run --help" in flowckpt("run", "pipeline.py", "two").expect(2).err


@pytest.mark.parametrize("store", [".flowckpt", "./runs", "file:runs", ".hidden"])
def test_a_store_is_a_directory_that_does_not_exist_yet(flowckpt, store):
    flowckpt("run", "pipeline.py:naps", "--id", "one", "--store", store).expect(0)
    assert (flowckpt.directory / store.removeprefix("file:") / "runs" / "one").is_dir()
    (again,) = flowckpt("list", "--store", store, "--json").expect(0).document
    assert again["workflow_id"] == "one"
