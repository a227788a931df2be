"""`except ValueError` around a `yield` catches the step's ValueError: now, at a replay, in a map, in a child."""

from __future__ import annotations

import copy
import pickle

import pytest

from flowckpt import FileCheckpointStore, WorkflowEngine, run_sync, step, workflow
from flowckpt.errors import FanOutFailedError, StepFailedError
from tests import forked

PIPELINE = """
import json, os
from flowckpt import step, workflow

def parse(text):
    return json.loads(text)

def later(what):
    if not os.path.exists("go"):
        os.kill(os.getpid(), 9)
    return what

@workflow("main")
def main():
    try:
        yield step("parse").python(parse, "{").checkpoint()
    except ValueError as error:
        said = f"{type(error).__name__} at {error.path}"
    yield step("between").python(str, 1).checkpoint()
    got = yield step("later").python(later, said)
    return got
"""


class BrokenFileError(FileNotFoundError):
    pass


class OwnError(Exception):
    pass


RAISED = [
    (ValueError("x"), ValueError),
    (KeyError("key"), LookupError),
    (ZeroDivisionError("division"), ArithmeticError),
    (FileNotFoundError(2, "No such file", "a.csv"), OSError),
    (BrokenFileError(2, "No such file", "a.csv"), FileNotFoundError),
    (UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), ValueError),
    (TimeoutError("late"), TimeoutError),
    (ModuleNotFoundError("nope"), ImportError),
    (AttributeError("no attribute"), AttributeError),
    (SyntaxError("bad"), SyntaxError),
]


@pytest.mark.parametrize(("error", "kind"), RAISED, ids=lambda each: getattr(each, "__name__", type(each).__name__))
def test_the_exception_at_the_yield_is_the_builtin_that_was_raised(error, kind):
    def fail():
        raise error

    @workflow("w")
    def catching():
        try:
            yield step("fail").python(fail)
        except kind as caught:
            assert isinstance(caught, StepFailedError)
            assert type(caught).__name__ == "StepFailedError"
            return str(caught), caught.path

    said, path = run_sync(catching).unwrap()
    assert path == "fail"
    assert said.startswith("step 'fail' failed with ")


@pytest.mark.parametrize("error", [OwnError("x"), StopIteration(1), ExceptionGroup("g", [ValueError(1)])])
def test_what_has_no_builtin_that_fits_is_a_plain_failed_step(error):
    def fail():
        raise error

    @workflow("w")
    def catching():
        try:
            yield step("fail").python(fail)
        except StepFailedError as caught:
            return type(caught) is StepFailedError

    assert run_sync(catching).unwrap() is True


def test_another_builtin_is_not_caught():
    def fail():
        raise KeyError("k")

    @workflow("w")
    def missing():
        try:
            yield step("fail").python(fail)
        except ValueError:
            return "wrong"

    assert run_sync(missing).error.failed_with(KeyError)


@pytest.mark.parametrize("kind", [ValueError, FileNotFoundError, UnicodeDecodeError, KeyError])
def test_it_survives_pickling_and_copying_and_equals_its_replay(kind):
    failed = StepFailedError("a", error_type="m.Mine", error_message="x", error_bases=["m.Mine", kind.__name__])
    for back in (pickle.loads(pickle.dumps(failed)), copy.copy(failed), copy.deepcopy(failed)):
        assert isinstance(back, kind)
        assert back == failed and hash(back) == hash(failed) and type(back) is type(failed)
    many = FanOutFailedError("m", error_type="flowckpt.errors.FanOutFailedError", error_message="1", causes=[failed])
    assert isinstance(pickle.loads(pickle.dumps(many)).causes[0], kind)


def test_a_failing_member_of_a_map_is_its_builtin_among_the_causes(tmp_path):
    @workflow("w")
    def mapping():
        try:
            yield step("ints").map(int, ["1", "x"]).checkpoint()
        except FanOutFailedError as error:
            return [isinstance(each, ValueError) for each in error.causes]

    engine = WorkflowEngine(FileCheckpointStore(tmp_path / "store"))
    assert engine.run_sync(mapping, workflow_id="run").unwrap() == [True]


def test_after_a_crash_the_replay_takes_the_same_branch(tmp_path):
    (tmp_path / "main.py").write_text(PIPELINE)
    died = forked.run(["-m", "flowckpt", "run", "main.py", "--id", "r"], cwd=tmp_path)
    assert died.returncode == -9
    (tmp_path / "go").touch()
    resumed = forked.run(["-m", "flowckpt", "resume", "r"], cwd=tmp_path)
    assert "output: 'StepFailedError at parse'" in resumed.stdout, resumed.stderr
    assert "parse: failed" not in resumed.stderr  # it was not run again


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "No such file or directory", "/data/a.csv"),
        OSError(28, "No space left on device"),
        FileExistsError(17, "File exists", "a", None, "b"),
        OSError("no number"),
        BrokenFileError(2, "a: 'b'", "c"),
    ],
    ids=str,
)
def test_the_number_and_the_file_of_an_os_error_are_those_of_the_step(error):
    def fail():
        raise error

    @workflow
    def flow():
        try:
            yield step("s").python(fail)
        except OSError as caught:
            copied = pickle.loads(pickle.dumps(caught))
            return [(each.errno, each.strerror, each.filename) for each in (caught, copied)]

    assert run_sync(flow).unwrap() == [(error.errno, error.strerror, error.filename)] * 2
