"""Code that was edited between two attempts: nothing old is trusted and nothing is redone without anyone saying so."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Callable, Generator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from crashing import CrashingStore, SimulatedCrash

from flowckpt import RunOptions, WorkflowEngine, in_sync, step, workflow
from flowckpt.errors import StaleStepError, WorkflowChangedError
from flowckpt.evidence import file_sha256

ran: list[str] = []
NUMBERS = count()

CODE = """
from pathlib import Path

def rows(path):
    ran.append("rows")
    Path(path).write_text("3 1 2")
    return path

def total(path, factor):
    ran.append("total")
    return sum(map(helper, Path(path).read_text().split())) * factor

def helper(text):
    return int(text)

def report(answer):
    ran.append("report")
    return f"total {answer}"
"""


class Program:
    """A pipeline whose functions are imported anew from their present text."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch
        self.factor, self.tag, self.extra = 1, "1", ""
        self.edit()

    def edit(self, old: str = "", new: str = "") -> None:
        assert old in CODE
        file = self._folder / f"edition{next(NUMBERS)}.py"
        file.write_text(CODE.replace(old, new) if old else CODE)
        self.module = types.ModuleType("editions")
        self.module.__file__ = str(file)
        self.module.__dict__["ran"] = ran
        self._monkeypatch.setitem(sys.modules, "editions", self.module)
        exec(compile(file.read_text(), str(file), "exec"), self.module.__dict__)

    @property
    def flow(self) -> Any:
        code, program = self.module, self

        @workflow("flow")
        def flow() -> Generator[Any, Any, str]:
            made = step("rows").python(code.rows, "rows")
            path = yield made.evidence(file_sha256("rows")).checkpoint()
            if program.extra == "before":
                yield step("extra").python(noted, "extra").checkpoint()
            answer = yield step("total").python(code.total, path, program.factor).version(program.tag).checkpoint()
            said = yield step("report").python(code.report, answer).checkpoint()
            if program.extra == "behind":
                yield step("extra").python(noted, "extra").checkpoint()
            return str(said).upper() if program.extra == "body" else said

        return flow


def noted(what: str) -> str:
    ran.append(what)
    return what


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    ran.clear()
    monkeypatch.chdir(tmp_path)
    return Program(tmp_path, monkeypatch)


def start(store: Any, program: Program) -> None:
    assert WorkflowEngine(store).run_sync(program.flow, workflow_id="run").output == "total 6"
    ran.clear()


def resume(store: Any, program: Program, **options: Any) -> Any:
    return WorkflowEngine(store).resume_sync(program.flow, workflow_id="run", options=RunOptions(**options))


def checkpoints(store: Any) -> list[int]:
    return [each.sequence for each in asyncio.run(store.list_checkpoints("run"))]


EDIT = ("int(text)", "int(text) + 1")  # in a helper: the answer becomes 9

POLICIES = [  # options, what runs, the output; or None where it stops
    ({}, None, ""),
    ({"on_code_change": "fail"}, None, ""),
    ({"on_stale": "rerun"}, None, ""),
    ({"on_stale": "reuse"}, None, ""),
    ({"reuse": "inputs"}, None, ""),
    ({"on_code_change": "rerun"}, ["total", "report"], "total 9"),
    ({"on_code_change": "rerun", "on_stale": "fail"}, ["total", "report"], "total 9"),
    ({"on_code_change": "rerun", "reuse": "inputs"}, ["total", "report"], "total 9"),
    ({"on_code_change": "reuse"}, [], "total 6"),
    ({"on_code_change": "reuse", "on_stale": "fail"}, [], "total 6"),
    ({"on_code_change": "reuse", "force": True}, [], "total 6"),
    ({"force": True}, ["total", "report"], "total 9"),
    ({"from_step": "total"}, ["total", "report"], "total 9"),
    ({"from_step": "total", "reuse": "inputs"}, ["total", "report"], "total 9"),
    ({"from_step": "rows"}, ["rows", "total", "report"], "total 9"),
    ({"from_step": "report"}, None, ""),
    ({"from_step": "rows", "reuse": "inputs"}, None, ""),
]


@pytest.mark.parametrize(("options", "runs", "output"), POLICIES)
def test_an_edited_function_stops_the_resume_until_somebody_says_what_to_do(
    options: dict[str, Any], runs: list[str] | None, output: str, program: Program, reopen: Callable[[], Any]
) -> None:
    start(reopen(), program)
    program.edit(*EDIT)
    before = checkpoints(reopen())
    plan = in_sync(WorkflowEngine(reopen())).plan(program.flow, workflow_id="run", options=RunOptions(**options))
    if runs is None:
        assert plan.stopped_by == "total"
        with pytest.raises(StaleStepError, match=r"code: total\(\), or code of the project") as stopped:
            resume(reopen(), program, **options)
        assert (stopped.value.path, ran, checkpoints(reopen())) == ("total", [], before)
        assert "--on-code-change rerun" in stopped.value.remedy
        assert "--on-code-change reuse" in stopped.value.remedy
    else:
        foreseen = [each.path for each in plan.steps if each.decision == "rerun"]
        assert foreseen == (["total"] if "inputs" in options.values() else runs), (
            "that 'total' returns as before is assumed"
        )
        result = resume(reopen(), program, **options)
        assert (ran, result.output) == (runs, output)
        assert result.steps.executed == len(runs)


def test_a_result_of_today_is_todays_and_is_not_asked_about_again(program: Program, reopen: Callable[[], Any]) -> None:
    start(reopen(), program)
    program.edit(*EDIT)
    assert resume(reopen(), program, on_code_change="rerun").output == "total 9"
    ran.clear()
    assert resume(reopen(), program).output == "total 9"
    assert ran == []
    program.edit()
    with pytest.raises(StaleStepError):
        resume(reopen(), program)


def test_a_result_of_old_code_that_is_reused_stays_one_of_old_code(program: Program, reopen: Callable[[], Any]) -> None:
    start(reopen(), program)
    program.edit(*EDIT)
    assert resume(reopen(), program, on_code_change="reuse").output == "total 6"
    with pytest.raises(StaleStepError):
        resume(reopen(), program)


EDITS: dict[str, tuple[str, str, bool]] = {
    "a comment": ("return path", "return path  # the path", False),
    "a docstring": ("def total(path, factor):\n", 'def total(path, factor):\n    """Add."""\n', False),
    "empty lines": ("def helper", "\n\n\ndef helper", False),
    "another quote": ('"total"', "'total'", False),
    "the body": ("* factor", "* factor + 1", True),
    "a default": ("path, factor", "path, factor=2", True),
    "a helper": EDIT + (True,),
}


@pytest.mark.parametrize(("old", "new", "is_edit"), EDITS.values(), ids=EDITS)
def test_code_is_what_it_does_and_not_how_it_is_written(
    old: str, new: str, is_edit: bool, program: Program, reopen: Callable[[], Any]
) -> None:
    start(reopen(), program)
    program.edit(old, new)
    if is_edit:
        with pytest.raises(StaleStepError):
            resume(reopen(), program)
    else:
        assert resume(reopen(), program).steps.restored == 3


def test_an_edit_strands_only_the_runs_that_have_a_result_of_it(program: Program, reopen: Callable[[], Any]) -> None:
    with pytest.raises(SimulatedCrash):
        WorkflowEngine(CrashingStore(reopen(), 2, is_after=True)).run_sync(program.flow, workflow_id="run")
    program.edit(*EDIT)
    ran.clear()
    assert resume(reopen(), program).output == "total 9"
    assert ran == ["total", "report"]


# --- code and facts ---------------------------------------------------------------------------------------------------

BOTH = [  # options, what runs or None
    ({}, None),
    ({"on_stale": "rerun"}, None),
    ({"on_code_change": "rerun"}, ["rows", "total", "report"]),
    ({"on_code_change": "reuse"}, ["rows", "total", "report"]),
    ({"on_code_change": "reuse", "on_stale": "reuse"}, []),
    ({"on_code_change": "rerun", "on_stale": "reuse"}, ["rows", "total", "report"]),
    ({"on_code_change": "rerun", "on_stale": "fail"}, None),
    ({"force": True}, ["rows", "total", "report"]),
]


@pytest.mark.parametrize(("options", "runs"), BOTH)
def test_where_code_and_facts_have_moved_both_answers_count(
    options: dict[str, Any], runs: list[str] | None, program: Program, reopen: Callable[[], Any]
) -> None:
    start(reopen(), program)
    Path("rows").unlink()
    program.edit('"3 1 2"', '"3 1 2 "')
    if runs is None:
        with pytest.raises(StaleStepError) as stopped:
            resume(reopen(), program, **options)
        assert {reason.partition(":")[0] for reason in stopped.value.reasons} == {"code", "evidence"}
        assert ran == []
    else:
        assert resume(reopen(), program, **options).status == "completed"
        assert ran == runs


@pytest.mark.parametrize("is_complete", [True, False], ids=["complete", "died"])
def test_an_edit_behind_a_rerun_of_the_prefix_needs_no_answer_and_of_inputs_stops_before_anything_runs(
    is_complete: bool, program: Program, reopen: Callable[[], Any]
) -> None:
    if is_complete:
        start(reopen(), program)
    else:
        with pytest.raises(SimulatedCrash):
            WorkflowEngine(CrashingStore(reopen(), 4, is_after=True)).run_sync(program.flow, workflow_id="run")
        ran.clear()
    Path("rows").unlink()
    program.edit(*EDIT)
    before = checkpoints(reopen())
    with pytest.raises(StaleStepError):
        resume(reopen(), program, reuse="inputs")
    assert (ran, checkpoints(reopen())) == ([], before)
    assert resume(reopen(), program).output == "total 9"
    assert ran == ["rows", "total", "report"]


# --- arguments and tags -----------------------------------------------------------------------------------------------

FACTS = [  # what moved, options, what runs or None
    ({"factor": 2}, {}, ["total", "report"]),
    ({"factor": 2}, {"reuse": "inputs"}, ["total", "report"]),
    ({"factor": True}, {"reuse": "inputs"}, ["total"]),
    ({"factor": 1.0}, {"on_stale": "fail"}, None),
    ({"factor": 2}, {"on_stale": "fail"}, None),
    ({"factor": 2}, {"on_stale": "reuse"}, []),
    ({"factor": 2}, {"on_code_change": "reuse"}, ["total", "report"]),
    ({"tag": "2"}, {}, ["total", "report"]),
    ({"tag": "2"}, {"reuse": "inputs"}, ["total"]),
    ({"tag": "2"}, {"on_stale": "fail"}, None),
    ({"tag": "2"}, {"on_stale": "reuse"}, []),
    ({"tag": "2", "factor": 2}, {"on_stale": "fail", "force": True}, ["total", "report"]),
]


@pytest.mark.parametrize(("moved", "options", "runs"), FACTS)
def test_moved_arguments_and_tags_are_facts(
    moved: dict[str, Any],
    options: dict[str, Any],
    runs: list[str] | None,
    program: Program,
    reopen: Callable[[], Any],
) -> None:
    start(reopen(), program)
    vars(program).update(moved)
    if runs is None:
        with pytest.raises(StaleStepError) as stopped:
            resume(reopen(), program, **options)
        assert (stopped.value.path, ran) == ("total", [])
        assert "--on-stale rerun" in stopped.value.remedy
    else:
        result = resume(reopen(), program, **options)
        assert (ran, result.status) == (runs, "completed")
        assert result.output == f"total {6 * moved.get('factor', 1) if runs else 6}"


# --- the generator ----------------------------------------------------------------------------------------------------


def test_an_edited_generator_that_yields_the_same_makes_nothing_stale(
    program: Program, reopen: Callable[[], Any]
) -> None:
    with pytest.raises(SimulatedCrash):
        WorkflowEngine(CrashingStore(reopen(), 4, is_after=True)).run_sync(program.flow, workflow_id="run")
    ran.clear()
    program.extra = "body"
    assert resume(reopen(), program).output == "TOTAL 6"
    assert ran == []


INSERTED = [  # where, options, what runs or None
    ("before", {}, None),
    ("before", {"on_code_change": "rerun", "on_stale": "rerun"}, None),
    ("before", {"force": True}, ["extra", "total", "report"]),
    ("before", {"from_step": "total"}, ["extra", "total", "report"]),
    ("behind", {}, ["extra"]),
]


@pytest.mark.parametrize(("where", "options", "runs"), INSERTED)
def test_a_step_put_in_is_run_where_the_record_ends_and_refused_before(
    where: str, options: dict[str, Any], runs: list[str] | None, program: Program, reopen: Callable[[], Any]
) -> None:
    with pytest.raises(SimulatedCrash):
        WorkflowEngine(CrashingStore(reopen(), 4, is_after=True)).run_sync(program.flow, workflow_id="run")
    ran.clear()
    program.extra = where
    before = checkpoints(reopen())
    if runs is None:
        with pytest.raises(WorkflowChangedError, match="yields the step 'extra'") as refused:
            resume(reopen(), program, **options)
        assert "step 'total'" in refused.value.recorded
        assert "step 'extra'" in refused.value.yielded
        assert (ran, checkpoints(reopen())) == ([], before)
    else:
        assert resume(reopen(), program, **options).output == "total 6"
        assert ran == runs
        again = resume(reopen(), program)
        assert (again.steps.executed, again.steps.restored, ran) == (0, 4, runs)
