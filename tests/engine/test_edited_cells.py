"""An edited cell of a notebook stops the resume if the step uses what it defines; nothing else that cells do stops it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("IPython")
pytest.importorskip("fcntl")  # the sessions are forked

START = "from flowckpt import step, workflow, FileCheckpointStore, RunOptions, WorkflowEngine\neng = WorkflowEngine(FileCheckpointStore({place!r}))"
FLOW = "@workflow\ndef etl(): return (yield step('calc').python(calc){more}.checkpoint())"
RUN = "result = eng.run_sync(etl, workflow_id='r')"
RESUME = """
try:
    print('reused' if eng.resume_sync(etl, workflow_id='r').steps.restored else 'executed')
except Exception as error:
    print(type(error).__name__)"""
SAME, NEW = "same kernel", "new kernel"
CALC = "def calc(): return RATE"
CLASS = "class T:\n    def m(self): return 1"
DECORATOR = "def twice(f):\n    def calc(): return f() * 2\n    return calc"
MODULE = "open('rates.py', 'w').write('RATE = 1')\nimport importlib, rates\n_ = importlib.reload(rates)"
LIVE = "%load_ext autoreload\n%autoreload 2"
HELPERS = "import functools\nRATE = 2\ndef twice(g):\n    @functools.wraps(g)\n    def inner(x): return g(x) * 2\n    return inner\ndef f(x): return x * RATE\n@twice\ndef wrapped(x, by=3): return x + by\nclass T:\n    rate = 4\n    @property\n    def p(self): return 5\n    def m(self): return 6\ndef last(x):\n    return f(x)"
TABLE = ["T = {}", "def calc(): return T", "T['a'] = 1", "T['b'] = 2"]
CHOOSING = "if UP:\n    from math import ceil as f\nelse:\n    from math import floor as f"
YEARS = "def old(): return 1\ndef new(): return 2\nboth = [old, new]\n"
FRAME = ["rows = [1, 2]", "kept = rows", "rows = kept[1:]", "def calc(): return rows"]


def write_module(name, text=HELPERS):
    return f"_ = open({name + '.py'!r}, 'w').write({text!r})"


EDITED = {  # the cells of the run, those of the resume; each in both kinds of kernels
    "a function": (["def helper(): return 1", "def calc(): return helper()"], {0: "def helper(): return 2"}),
    "a constant": (["RATE = 1", CALC], {0: "RATE = 2"}),
    "a constant in the cell of the step": ([f"RATE = 1\n{CALC}"], {0: f"RATE = 2\n{CALC}"}),
    "a class": ([CLASS, "def calc(): return T().m()"], {0: CLASS.replace("1", "2")}),
    "a class of an object": ([CLASS, "t = T()", "def calc(): return t.m()"], {0: CLASS.replace("1", "2"), 1: "t = T()"}),
    "an item": (TABLE, {2: "T['a'] = 3"}),
    "a method that changes the value": (["T = []", "T.append(1)", "def calc(): return T"], {1: "T.append(2)"}),
    "a value made in another cell": (["RATE = 1", "T = {'r': RATE}", "def calc(): return T"], {0: "RATE = 2", 1: "T = {'r': RATE}"}),
    "an older value of the same name": (FRAME, {0: "rows = [1, 3]", 1: FRAME[1], 2: FRAME[2]}),
    "a value extended by itself": (["rows = [1]", "rows = rows + [2]", "def calc(): return rows"], {0: "rows = [3]", 1: "rows = rows + [2]"}),
    "a name set in a condition": (["RATE = 1", "if RATE:\n    RATE = 2", CALC], {1: "if RATE:\n    RATE = 3"}),
    "an import": (["from math import floor as f", "def calc(): return f(1.5)"], {0: "from math import ceil as f"}),
    "the condition of an import": (["UP = 0", CHOOSING, "def calc(): return f(1.5)"], {0: "UP = 1", 1: CHOOSING}),
    "the function that an alias stands for": ([write_module("years", YEARS), "from years import old as f, both", "def calc(): return f(), len(both)"], {1: "from years import new as f, both"}),
    "a part under another name": (["T = {'a': {}}", "P = T['a']", "P['r'] = 1", "def calc(): return T"], {2: "P['r'] = 2"}),
    "a module imported in another cell": ([MODULE, "def calc(): return rates.RATE"], {0: MODULE.replace("= 1", "= 22")}),
    "a step in a timed cell": (["%%time\ndef calc(): return 1"], {0: "%%time\ndef calc(): return 2"}),
    "a timed statement": (["%time RATE = 1", CALC], {0: "%time RATE = 2"}),
    "a captured cell": (["%%capture\nRATE = 1", CALC], {0: "%%capture\nRATE = 2"}),
    "a lambda": (["RATE = 1", "helper = lambda: RATE", "def calc(): return helper()"], {0: "RATE = 2"}),
    "a default": (["RATE = 1", "def calc(rate=RATE): return rate"], {0: "RATE = 2", 1: "def calc(rate=RATE): return rate"}),
    "a decorator": ([DECORATOR, "@twice\ndef calc(): return 1"], {0: DECORATOR.replace("2", "3"), 1: "@twice\ndef calc(): return 1"}),
    "a wrapped method": ([CLASS, "calc = T().m"], {0: CLASS.replace("1", "2"), 1: "calc = T().m"}),
}  # fmt: skip
HELPED = {  # what the step does with the helpers, and the edit of their file
    "a function": ("h.f(1)", "x * RATE", "x + RATE"),
    "a constant": ("h.f(1)", "RATE = 2", "RATE = 30"),
    "a decorated function": ("h.wrapped(1)", "x + by", "x - by"),
    "a default": ("h.wrapped(1)", "by=3", "by=30"),
    "a method": ("h.T().m()", "return 6", "return 60"),
    "a property": ("h.T().p", "return 5", "return 50"),
    "a constant of a class": ("h.T.rate", "rate = 4", "rate = 40"),
}


def list_helped():
    """Yield helpers that a shell loads again: the cells of the run, those that are edited."""
    for number, (name, (call, old, new)) in enumerate(HELPED.items()):
        for kind, load, more in (
            ("live", f"{LIVE}\nimport live{number} as h", {}),
            ("reloaded", f"import reloaded{number} as h, importlib; _ = importlib.reload(h)", {1: ""}),
            ("run", "%run run{number}.py", {1: ""}),
        ):
            edits = {0: write_module(f"{kind}{number}", HELPERS.replace(old, new)), **dict.fromkeys(more, load)}
            step = f"def calc(): return {call.replace('h.', '') if kind == 'run' else call}"
            cells = [write_module(f"{kind}{number}"), load.replace("{number}", str(number)), step]
            edits = {at: cell.replace("{number}", str(number)) for at, cell in edits.items()}
            yield f"{name} of a {kind} module", (cells, edits)


EDITED.update(list_helped())
UNEDITED = {  # the cells of the run, those of the resume, the kernels
    "nothing": (["RATE = 1", CALC], ["RATE = 1", CALC], NEW),
    "a constant edited before the run": (["RATE = 1", CALC, "RATE = 2"], ["RATE = 2", CALC], NEW),
    "a class edited before the run": ([CLASS, "def calc(): return T().m()", CLASS.replace("1", "2")], [CLASS.replace("1", "2"), "def calc(): return T().m()"], NEW),
    "an item edited before the run": ([*TABLE, "T['a'] = 3"], [*TABLE[:2], "T['a'] = 3", TABLE[3]], NEW),
    "cells in another order": (TABLE, [TABLE[2]], SAME),
    "all cells again": (FRAME, FRAME, SAME),
    "all cells in a new kernel": (FRAME, FRAME, NEW),
    "timed cells": (["%%time\nRATE = 1", f"%%time\n{CALC}"], ["%%time\nRATE = 1", f"%%time\n{CALC}"], NEW),
    "a cell that is not timed any more": (["%%time\nRATE = 1", CALC], ["RATE = 1"], SAME),
    "a comment, formatting, a docstring": (["RATE = 1", "def calc():\n    return RATE"], ["RATE = (  # a rate\n1)", "def calc():\n    'Calc.'\n    return RATE"], SAME),
    "unrelated cells": (["RATE = 1", CALC], ["for x in range(3): pass", "OTHER = 2", "def other(): return OTHER", "1 + 1", "_"], SAME),
    "what cells show": (["rows = [1]", "def calc(): return rows"], ["rows.copy()", "print(rows)", "for x in rows: rows.count(x)", "rows.index(1); rows.copy()"], SAME),
    "runs from a step": (["calls = []", "def calc(): calls.append(1); return eng and len(calls)"], ["calls.clear()", "eng.run_sync(etl)", "eng.run_sync(etl).output"], SAME),
    "a conditional import again": (["UP = 0", CHOOSING, "def calc(): return f(1.5)"], [CHOOSING, CHOOSING], SAME),
    "the condition of an import that is not run again": (["UP = 0", CHOOSING, "def calc(): return f(1.5)"], ["UP = 1"], SAME),
    "a counter": (["count = 0", "def calc():\n    global count\n    count += 1\n    return count"], ["count"], SAME),
    "a cell that uses an edited one, not run again": (["RATE = 1", "T = {'r': RATE}", "def calc(): return T"], ["RATE = 2"], SAME),
    "text that another language reads": (["RATE = 1", CALC], ["%%writefile rates.py\nRATE = 2"], SAME),
    "a cell that cannot be parsed": (["RATE = 1", CALC], ["RATE = = 2"], SAME),
    "a module loaded again that defines the same": ([write_module("same"), f"{LIVE}\nimport same", "def calc(): return same.f(1)"], [write_module("same", HELPERS.replace("by=3", "by=4")), "same.f(1)"], SAME),
    "a module edited and not loaded again": ([write_module("kept"), "import kept", "def calc(): return kept.f(1)"], [write_module("kept", HELPERS.replace("x * RATE", "x + RATE"))], SAME),
    "a main block": (["RATE = 1", CALC, "if __name__ == '__main__':\n    print(1)"], ["if __name__ == '__main__':\n    print(2)"], SAME),
}  # fmt: skip


def list_cases():
    for name, (cells, edits) in EDITED.items():
        yield f"{name}, {SAME}", cells, [*edits.values()], SAME, "StaleStepError"
        yield f"{name}, {NEW}", cells, [edits.get(at, cell) for at, cell in enumerate(cells)], NEW, "StaleStepError"
    for name, (cells, more, kernel) in UNEDITED.items():
        yield f"{name}, {kernel}", cells, more, kernel, "reused"


CASES = {name: case for name, *case in list_cases()}


def run_sessions(sessions, folder):
    env = {**os.environ, "IPYTHONDIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    env["PYTHONDONTWRITEBYTECODE"] = "1"  # modules are written and imported within a second
    command = [sys.executable, "-m", "tests.engine.shell_sessions"]
    done = subprocess.run(
        command, input=json.dumps(sessions), capture_output=True, text=True, env=env, check=True, cwd=folder
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder, sessions, ends = tmp_path_factory.mktemp("cells"), [], {}
    for number, (name, (cells, more, kernel, _)) in enumerate(CASES.items()):
        start, flow = START.format(place=str(folder / str(number))), FLOW.format(more="")
        first = [start, *cells, flow, RUN]
        sessions += [[*first, *more, RESUME]] if kernel == SAME else [first, [start, *more, flow, RESUME]]
        ends[name] = len(sessions) - 1
    printed = run_sessions(sessions, folder)
    return {name: printed[end].splitlines()[-1] for name, end in ends.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_resume_finds_edited_cells_and_no_others(outcomes, name):
    assert outcomes[name] == CASES[name][-1]


HELD = {  # the import, the step, the edit of the module: the first kernel runs it and loads the module again
    "a held function": ("from {} import f", "def calc(): return f(1)", "x * RATE", "x + RATE"),
    "a held function as the step": ("from {} import last as calc", "", "return f(x)", "return f(x) + 1"),
    "a held default": ("from {} import wrapped", "def calc(): return wrapped(1)", "by=3", "by=30"),
    "a held constant": ("from {} import RATE", "def calc(): return RATE", "RATE = 2", "RATE = 30"),
    "a held class": ("from {} import T", "def calc(): return T().m()", "return 6", "return 60"),
    "a held constant of a class": ("from {} import T", "def calc(): return T.rate", "rate = 4", "rate = 40"),
    "everything": ("from {} import *", "def calc(): return f(1)", "x * RATE", "x + RATE"),
    "a held function that is not edited": ("from {} import wrapped", "def calc(): return wrapped(1)", "functools\n", "functools\nOTHER = 2\n"),
    "nothing that it uses": ("from {} import f, T", "def calc(): return f(T().p)", "import functools\n", "import functools\n\nOTHER = 2\n"),
}  # fmt: skip


def test_what_a_kernel_holds_over_a_reload_is_not_recorded_under_the_new_text(tmp_path):
    sessions = []
    for number, (bind, step, old, new) in enumerate(HELD.values()):
        module, start = f"held{number}", START.format(place=str(tmp_path / str(number)))
        bind, flow = bind.format(module), FLOW.format(more="").replace("calc)", "calc, *args)")
        step = f"args = {[1] * (not step)}\n{step}"
        reload = f"import importlib, {module}; _ = importlib.reload({module})"
        edit = write_module(module, HELPERS.replace(old, new))
        again = "print(eng.resume_sync(etl, workflow_id='r', options=RunOptions(on_code_change='rerun')).output)"
        first = [start, write_module(module), bind, step, flow, RUN, edit, reload, again, again]
        sessions += [first, [start, bind, step, flow, RESUME]]
    printed = [each.splitlines()[-1] for each in run_sessions(sessions, tmp_path)]
    assert dict(zip(HELD, printed[1::2], strict=True)) == dict.fromkeys(HELD, "StaleStepError") | dict.fromkeys(
        [*HELD][-2:], "reused"
    )


@pytest.mark.parametrize("start", [f"{LIVE}\nimport {{}} as h", "%run {}.py"])
def test_a_new_kernel_reuses_what_a_shell_ran_with_the_code_that_it_loaded_again(start, tmp_path):
    sessions = []
    for number, (call, old, new) in enumerate(HELPED.values()):
        module, first = f"again{number}", START.format(place=str(tmp_path / str(number)))
        step = f"def calc(): return {call if 'h' in start else call.replace('h.', '')}"
        load, flow, edit = start.format(module), FLOW.format(more=""), write_module(module, HELPERS.replace(old, new))
        again = f"{load}\nresult = eng.resume_sync(etl, workflow_id='r', options=RunOptions(on_code_change='rerun'))"
        sessions += [
            [first, write_module(module), load, step, flow, RUN, edit, load, again],
            [first, load, step, flow, RESUME],
        ]
    printed = [each.splitlines()[-1] for each in run_sessions(sessions, tmp_path)[1::2]]
    assert dict(zip(HELPED, printed, strict=True)) == dict.fromkeys(HELPED, "reused")


def test_a_cached_result_is_not_taken_after_an_edit_in_a_kernel(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    client_class = pytest.importorskip("nbclient").NotebookClient
    again = "print(eng.run_sync(etl).output)"
    cells = [
        START.format(place=str(tmp_path)), "RATE = 1", CALC, FLOW.format(more=".cache()"), again,
        "RATE = 2", again, "print(eng.run_sync(etl).steps.executed)",
        f"%%time\n{CALC} * 2", again, f"%%time\n{CALC} * 3", again, "RATE = 1", again,
    ]  # fmt: skip
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    asyncio.run(client_class(notebook, kernel_name="python3", timeout=240).async_execute())
    asked = [cell for cell in notebook.cells if cell.source.startswith("print")]
    shown = [
        "".join(output.text for output in cell.outputs if output.get("name") == "stdout").strip() for cell in asked
    ]
    assert shown == ["1", "2", "0", "4", "6", "3"]
