"""A process that runs old code, because its files were replaced after it imported them, records no results for the new code."""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType

import pytest

from flowckpt import step, workflow
from tests.forked import run_module

RATES = "RATE = 2\n"
TARIFF = """
from flowckpt import step, workflow
import rates


def bill(count):
    return count * rates.RATE


@workflow("tariff")
def tariff(count: int = 3):
    return (yield step("bill").python(bill, count).checkpoint())
"""
WORKER = """
import sys
import time
from pathlib import Path

from flowckpt import FileCheckpointStore, WorkflowEngine
import tariff

changed = time.time_ns()
while changed and (file := Path(sys.argv[1])).stat().st_ctime_ns <= changed:  # as coarse as the clock of the file system
    deployed = file.with_suffix(".new")
    deployed.write_text(sys.argv[2])
    deployed.replace(file)
engine = WorkflowEngine(FileCheckpointStore(".flowckpt"))
print(engine.run_sync(tariff.tariff, workflow_id="monday").unwrap())
print(engine.resume_sync(tariff.tariff, workflow_id="monday").steps)
"""


SWITCHING = """
import os
import sys
from flowckpt import FileCheckpointStore, WorkflowEngine
sys.path.insert(0, os.path.abspath("current"))
import tariff

if sys.argv[1] == "link":
    os.symlink("two", "next")
    os.replace("next", "current")
else:
    os.rename("current", "old")
    os.rename("two", "current")
engine = WorkflowEngine(FileCheckpointStore(".flowckpt"))
print(engine.run_sync(tariff.tariff, workflow_id="monday").unwrap())
print(engine.resume_sync(tariff.tariff, workflow_id="monday").steps)
"""


@pytest.fixture
def project(tmp_path):
    for name, text in {"rates": RATES, "tariff": TARIFF, "worker": WORKER}.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def call(project, module, *arguments):
    return run_module(module, [*arguments], cwd=project, env={**os.environ, "PYTHONPATH": str(project)})


@pytest.mark.parametrize(
    ("file", "text", "output"),
    [("rates.py", "RATE = 11\n", "33"), ("tariff.py", TARIFF.replace("count * rates.RATE", "-count"), "-3")],
)
def test_a_result_of_code_that_was_replaced_before_it_ran_is_stale_for_the_new_code(project, file, text, output):
    code, said, trouble = call(project, "worker", file, text)
    assert code == 0, trouble
    first, again = said.splitlines()
    assert first == "6"
    assert "executed=0, restored=1" in again  # the same process still runs the same code
    code, said, trouble = call(project, "flowckpt", "resume", "monday")
    assert code == 10, (said, trouble)
    assert "bill(), or code of the project that it uses, was edited" in trouble
    code, said, trouble = call(project, "flowckpt", "resume", "monday", "--on-code-change", "rerun")
    assert (code, f"output: {output}\n" in said) == (0, True), (said, trouble)


def test_a_result_of_code_whose_files_were_not_touched_is_reused(project):
    (project / "other.py").write_text("")
    code, said, trouble = call(project, "worker", "other.py", "X = 1\n")
    assert (code, said.splitlines()[0]) == (0, "6"), trouble
    code, said, trouble = call(project, "flowckpt", "resume", "monday")
    assert (code, "0 executed, 1 restored" in said) == (0, True), (said, trouble)


class Pretended:
    """What some libraries put among the modules: it claims to be one, and has no namespace."""

    __slots__ = ()
    __class__ = ModuleType


def test_a_workflow_can_be_defined_whatever_is_among_the_modules_and_loads_none_that_are_lazy(tmp_path, monkeypatch):
    (tmp_path / "lazy.py").write_text("raise SystemExit('loaded')\n")
    spec = importlib.util.spec_from_file_location("lazy", tmp_path / "lazy.py")
    lazy = importlib.util.module_from_spec(spec)
    importlib.util.LazyLoader(spec.loader).exec_module(lazy)
    for name, module in {"pretended": Pretended(), "nothing": None, "lazy": lazy}.items():
        monkeypatch.setitem(sys.modules, name, module)

    @workflow
    def defined():
        yield step("one").python(int)


@pytest.mark.parametrize("how", ["link", "rename"])
def test_a_result_of_code_in_whose_place_an_older_file_was_put_before_it_ran_is_stale(tmp_path, how):
    for name, rate in (("one", 2), ("two", 11)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tariff.py").write_text(TARIFF.replace("rates.RATE", str(rate)).replace("import rates", ""))
        for file in (tmp_path / name).iterdir():
            os.utime(file, (1_700_000_000, 1_700_000_000))
    if how == "link":
        (tmp_path / "current").symlink_to("one")
    else:
        (tmp_path / "one").rename(tmp_path / "current")
    (tmp_path / "service.py").write_text(SWITCHING)
    code, said, trouble = call(tmp_path, "service", how)
    assert code == 0, trouble
    first, again = said.splitlines()
    assert first == "6" and "executed=0, restored=1" in again
    code, said, trouble = call(tmp_path / "current", "flowckpt", "resume", "monday", "--store", "../.flowckpt")
    assert code == 10, (said, trouble)
