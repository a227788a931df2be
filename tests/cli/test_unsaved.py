"""`--on-save-error continue` from the shell: what is printed, what is warned of, which exit code says it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import click
import pytest

from flowckpt.cli.exit_codes import ExitCode, code_of_result
from flowckpt.cli.main import group
from flowckpt.cli.render import summary
from flowckpt.cli.settings import StoreChoice
from flowckpt.core.records import Status
from flowckpt.engine.values.result import StepCounts, WorkflowResult
from flowckpt.errors import CheckpointStorageError, StepFailedError
from flowckpt.stores import MemoryCheckpointStore

PIPELINE = """
import os
import resource
import shutil
from flowckpt import step, workflow

FREE = resource.getrlimit(resource.RLIMIT_FSIZE)

def full():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, FREE[1]))  # as a full disk: nothing more can be written

def room():
    resource.setrlimit(resource.RLIMIT_FSIZE, FREE)

def remove():
    shutil.rmtree("kept")

def fill():
    how = os.environ.get("HOW", "full")
    if how != "nothing":
        full() if how == "full" else remove()

def breaks():
    raise ValueError("the true cause")

@workflow
def fills(then: str = "work", back: bool = False):
    yield step("first").python(abs, -1).checkpoint()
    yield step("fill").python(fill).checkpoint()
    if back:
        yield step("room").python(room).checkpoint()
    if then == "fail":
        yield step("breaks").python(breaks)
    if then == "wait":
        yield step("go").wait("go")
    return "the output"
"""


@pytest.fixture
def unsaved(flowckpt):
    (flowckpt.directory / "filling.py").write_text(PIPELINE)

    def run(*arguments, **environ):
        line = ("run", "filling.py:fills", "--id", "r", "--store", "file:kept", "--on-save-error", "continue")
        return flowckpt(*line, *arguments, **environ)

    return run


def test_a_run_on_a_full_disk_prints_its_output_and_says_where_a_resume_goes_on(unsaved, flowckpt):
    ran = unsaved().expect(0)
    assert "completed: fills r\noutput: 'the output'" in ran.out
    assert "warning: the run completed, but its end is not saved" in ran.err
    assert "A resume continues from checkpoint 'first' (sequence 2)" in ran.err
    assert "Resume with: flowckpt resume --store file:kept r" in ran.err
    assert flowckpt("show", "r", "--store", "file:kept", "--json").document["status"] == "crashed"
    flowckpt("resume", "r", "--store", "file:kept", HOW="nothing").expect(0)


def test_the_document_of_such_a_run_holds_its_output_and_that_it_is_not_saved(unsaved):
    document = unsaved("--json").expect(0).document
    said = {name: document[name] for name in ("status", "output", "error", "is_saved", "last_saved")}
    assert said == {
        "status": "completed",
        "output": "the output",
        "error": None,
        "is_saved": False,
        "last_saved": "first",
    }


def test_its_last_event_says_so_too(unsaved):
    *_, last = map(json.loads, unsaved("--events").expect(0).out.splitlines())
    assert (last["event"], last["output"], last["is_saved"]) == ("WorkflowCompleted", "the output", False)


def test_a_failed_run_that_cannot_be_saved_shows_its_own_cause(unsaved):
    ran = unsaved("-i", "then=fail").expect(1)
    assert "step 'breaks' failed with ValueError: the true cause" in ran.err
    assert "The end of the run could not be saved" in ran.err
    assert "A resume continues from checkpoint 'first' (sequence 2)" in ran.err


def test_a_wait_that_cannot_be_saved_is_told_as_no_suspension(unsaved, flowckpt):
    ran = unsaved("-i", "then=wait").expect(13)
    assert ran.out.startswith("failed: fills r")
    assert "so it is not suspended: go " in ran.err
    assert "flowckpt signal" not in ran.err
    assert "A resume continues from checkpoint 'first'" in ran.err


def test_the_end_of_a_run_does_not_wait_for_a_store_that_is_gone(monkeypatch, capsys):
    class Gone(MemoryCheckpointStore):
        async def load_latest(self, workflow_id):
            await asyncio.Event().wait()

    monkeypatch.setattr(summary, "_LAST_READ_SECONDS", 0.01)
    summary.show_what_is_left("r", Gone(), StoreChoice("s3://gone", "option"), last_saved="fetch")
    said = capsys.readouterr().err
    assert "the store does not answer; the last checkpoint known to be saved is 'fetch'" in said
    assert "flowckpt resume" in said


def test_once_there_is_room_again_everything_is_saved(unsaved, flowckpt):
    ran = unsaved("-i", "back=true").expect(0)
    assert "checkpoint fill not saved" in ran.err
    assert "warning: the run completed" not in ran.err
    shown = flowckpt("show", "r", "--store", "file:kept", "--history", "--json").expect(0).document
    assert (shown["status"], shown["attempt"]) == ("completed", 2)
    made = {entry["attempt"]: [each["path"] for each in entry["results"]] for entry in shown["history"]}
    assert made == {1: ["first"], 2: ["fill", "room"]}


@pytest.mark.parametrize("then", ["work", "fail"])
def test_where_the_run_was_removed_nobody_is_told_to_resume_it(then, unsaved):
    ran = unsaved("-i", f"then={then}", HOW="remove").expect(0 if then == "work" else 1)
    assert ("output: 'the output'" in ran.out) == (then == "work")
    assert "The store has no checkpoint of the run, so it cannot be resumed: start it again." in ran.err
    assert "flowckpt resume" not in ran.err


def test_where_the_run_was_removed_a_run_that_stops_gives_no_such_hint_either(unsaved, flowckpt):
    line = ("run", "filling.py:fills", "--store", "file:kept")
    ran = flowckpt(*line, HOW="remove").expect(13)
    assert "is gone" in ran.err
    assert "The store has no checkpoint of the run" in ran.err
    assert "flowckpt resume" not in ran.err
    assert "flowckpt show" not in ran.err


# --- exit codes -------------------------------------------------------------------------------------------------------


STORE_ERROR = CheckpointStorageError("away")
STEP_ERROR = StepFailedError("a", error_type="ValueError", error_message="x")
CODES = [  # status, error, signal, is_saved, the code where the run is to fail, and where it is to continue
    ("completed", None, "", True, 0, 0),
    ("completed", None, "", False, 13, 0),
    ("completed", None, "SIGTERM", False, 13, 0),
    ("failed", STEP_ERROR, "", True, 1, 1),
    ("failed", STEP_ERROR, "", False, 13, 1),
    ("failed", STORE_ERROR, "", False, 13, 13),
    ("cancelled", KeyboardInterrupt(), "SIGINT", True, 130, 130),
    ("cancelled", KeyboardInterrupt(), "SIGINT", False, 13, 13),
]


@pytest.mark.parametrize("at", range(len(CODES)))
def test_the_exit_code_says_how_a_run_ended_that_was_to_go_on_and_suspension_or_stop_only_where_saved(at):
    status, error, name, is_saved, fails, goes_on = CODES[at]
    result = WorkflowResult("r", "w", Status(status), None, 1, StepCounts(), 0.0, error, is_saved)
    assert code_of_result(result, signal_name=name) == ExitCode(fails)
    assert code_of_result(result, signal_name=name, continue_on_save_error=True) == ExitCode(goes_on)


# --- numbers that are none --------------------------------------------------------------------------------------------


NUMBERS = [
    ("--interval", "nan"),
    ("--interval", "inf"),
    ("--interval", "-inf"),
    ("--interval", "-1"),
    ("--interval", "0"),
    ("--interval", "x"),
    ("--every", "0"),
    ("--every", "-1"),
    ("--every", "1.5"),
    ("--stay", "nan"),
    ("--stay", "-1"),
]


@pytest.mark.parametrize(("option", "value"), NUMBERS)
def test_a_number_that_is_none_is_a_usage_error_of_the_command(option: str, value: str, flowckpt):
    ran = flowckpt("run", "pipeline.py:etl", option, value).expect(2)
    assert f"Invalid value for '{option}': " in ran.err
    assert "Trigger" not in ran.err
    assert "float(" not in ran.err
    assert not (Path(flowckpt.directory) / ".flowckpt").exists()


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "1e300", "x"])
@pytest.mark.parametrize(
    ("option", "words"), [("--every", ("recover", "--watch")), ("--wait", ("cancel", "one"))], ids=["recover", "cancel"]
)
def test_a_time_to_wait_that_is_none_is_a_usage_error_of_other_commands_too(option, words, value, flowckpt):
    ran = flowckpt(*words, option, value).expect(2)
    assert f"Invalid value for '{option}': " in ran.err


def test_every_option_that_takes_seconds_takes_no_number_that_is_none():
    found = {}
    with click.Context(group) as context:
        for name in group.list_commands(context):
            for option in group.get_command(context, name).params:
                if isinstance(option.type, click.types.FloatParamType):
                    found[name, option.name] = option.type
    assert len(found) >= 5
    for kind in found.values():
        with pytest.raises(click.BadParameter):
            kind.convert("nan", None, None)


@pytest.mark.parametrize(
    ("name", "value"), [("interval", "nan"), ("interval", "inf"), ("interval", "-1"), ("every", "0")]
)
def test_such_a_number_among_the_settings_is_refused_in_their_words(name: str, value: str, flowckpt):
    variable = f"FLOWCKPT_{name.upper()}"
    ran = flowckpt("run", "pipeline.py:etl", **{variable: value}).expect(2)
    assert f"{variable} must be a " in ran.err
    (flowckpt.directory / "pyproject.toml").write_text(f"[tool.flowckpt]\n{name} = {value}\n")
    ran = flowckpt("run", "pipeline.py:etl").expect(2)
    assert f"tool.flowckpt.{name} must be a " in ran.err
    assert "Trigger" not in ran.err


# --- recover ----------------------------------------------------------------------------------------------------------


def test_recover_does_not_count_a_run_as_completed_whose_end_is_not_saved(unsaved, flowckpt):
    unsaved().expect(0)
    recover = ("recover", "--once", "--store", "file:kept")
    ran = flowckpt(*recover, "--json", FLOWCKPT_ON_SAVE_ERROR="continue").expect(1)
    assert '"outcome": "died"' in ran.out
    ran = flowckpt(*recover, "--json", FLOWCKPT_ON_SAVE_ERROR="continue", HOW="nothing").expect(0)
    assert '"outcome": "completed"' in ran.out
