"""The fingerprint of a step's function: what counts as its code, and what does not."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import runpy
import shutil
import statistics
import subprocess
import sys
import textwrap
import time
import timeit
import warnings
from itertools import count
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowckpt.core.identity.fingerprint import step_fingerprint
from flowckpt.core.system import functions
from tests.fingerprints import fingerprint_of_source
from tests.stable_ids import stable

NUMBERS = count()


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Import source as a module of its own."""
    folder = tmp_path_factory.mktemp("project")
    names = []

    def load(source, file=None):
        name = f"fingerprinted_{next(NUMBERS)}"
        file = file or folder / f"{name}.py"
        file.write_text(textwrap.dedent(source), "utf-8")
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        names.append(name)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in names:
        sys.modules.pop(name, None)


CODE = '''
import functools
import logging
import math

logging.basicConfig(level=30)
LIMIT = 10
OTHER = 1
KEEP = []
TABLE = {}
TABLE["a"] = 1

class Base:
    def tidy(self, row):
        return row

class Loader(Base):
    """Loads."""

    def load(self, rows):
        return [self.tidy(row) for row in rows]

    @classmethod
    def make(cls):
        return cls()

    @staticmethod
    def plain(x):
        return x

    def __call__(self, x):
        return x + OTHER

def even(n):
    return n == 0 or odd(n - 1)

def odd(n):
    return n != 0 and even(n - 1)

def helper(x, by=2):
    # twice
    return x * by

def traced(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper

def silent(function):
    def wrapper(*args):
        return function(*args)
    return wrapper

def step(rows: list[int], most=LIMIT) -> "Result":
    """Do it."""
    return [helper(row) for row in rows if even(row)][:most], TABLE

class Result:
    size = 1

@traced
def wrapped(x):
    return x

@silent
def hidden(x):
    return x + 7

@functools.cache
def cached(x):
    return helper(x)

async def later(x):
    return helper(x)

def outer(x):
    def inner(y):
        return local(y)
    def local(y):
        return y + 1
    return inner

def shadow(helper, rows):
    OTHER = 3
    return [LIMIT for LIMIT in rows], helper(OTHER), (lambda even: even(1))

if math.pi > 3:
    def chosen(x):
        return x
else:
    def chosen(x):
        return -x

try:
    from nowhere import fallback
except ImportError:
    def fallback(x):
        return x

@functools.singledispatch
def area(shape):
    return 0

@area.register
def _(shape: int):
    return 3

PARSERS, NAMES = {}, {}
LATER = None

def parser(name):
    def register(function):
        if name in PARSERS:
            raise ValueError(name)
        PARSERS[name] = function
        NAMES.setdefault(name, []).append(function)
        return function
    return register

@parser("csv")
def parse_csv(x):
    return x + 20

@parser("tsv")
class ParseTsv:
    start = 30

def parse(kind, x):
    return PARSERS[kind](x)

def names(kind):
    return NAMES[kind]

def enroll(name, function):
    NAMES.setdefault(name, []).append(function)

def prepare():
    global LATER
    LATER = 40

enroll("json", lambda x: x + 50)
prepare()

def late():
    return LATER

def counts():
    global OTHER
    OTHER = 5

def bare(x):
    return x

def log(x):
    kept: "list[Kept]" = KEEP
    logging.info(x)

quick = lambda function: lambda x: function(x) + 8

class Kept(Base):
    late = 1
'''

CALLABLES = {
    "a function": "step",
    "a wrapped function": "wrapped",
    "a function whose wrapper does not tell": "hidden",
    "a cached function": "cached",
    "an async function": "later",
    "a nested function": "outer(1)",
    "a partial": "functools.partial(functools.partial(helper, 1), by=3)",
    "a class": "Loader",
    "a method": "Loader.load",
    "a bound method": "Loader().load",
    "an inherited method": "Loader().tidy",
    "a class method": "Loader.make",
    "a static method": "Loader.plain",
    "a callable object": "Loader()",
    "a chosen function": "chosen",
    "a fallback": "fallback",
    "a generic function": "area",
    "a function that shadows": "shadow",
    "a function with a global": "counts",
    "a bare function": "bare",
    "a function inside a lambda": "quick(bare)",
}


def test_every_kind_of_callable_has_a_fingerprint_with_a_form_number(load):
    module = load(CODE)
    for text in CALLABLES.values():
        assert re.fullmatch(r"2:[A-Za-z0-9_-]{22}", step_fingerprint(eval(text, vars(module)))), text


@pytest.mark.parametrize(
    ("of", "old", "new"),
    [
        ("step", "even(row)]", "odd(row)]"),
        ("step", "LIMIT = 10", "LIMIT = 11"),  # a constant that its default names
        ("step", "x * by", "x ** by"),  # a helper
        ("step", "n == 0 or", "n == 1 or"),
        ("step", "n != 0 and", "n != 1 and"),  # a helper's helper, in a circle
        ("step", "by=2", "by=3"),
        ("step", 'TABLE["a"] = 1', 'TABLE["a"] = 2'),
        ("step", "size = 1", "size = 2"),  # a class that an annotation quotes
        ("step", "list[int]", "list[str]"),
        ("wrapped", "@traced\n", "@silent\n"),
        ("wrapped", "        return function(*args)", "        return function(*args[:1])"),
        ("hidden", "x + 7", "x + 8"),
        ("cached", "x * by", "x ** by"),
        ("cached", "@functools.cache", "@functools.lru_cache(maxsize=1)"),
        ("later", "x * by", "x ** by"),
        ("outer(1)", "y + 1", "y + 2"),
        ("functools.partial(functools.partial(helper, 1), by=3)", "x * by", "x ** by"),
        ("Loader", "return row\n", "return [row]\n"),  # its base
        ("Loader", "x + OTHER", "x - OTHER"),
        ("Loader.load", "return row\n", "return [row]\n"),
        ("Loader.load", "return cls()", "return cls"),  # the whole class counts
        ("Loader().load", "OTHER = 1", "OTHER = 2"),
        ("Loader().tidy", "return cls()", "return cls"),  # the object's own class too
        ("Loader()", "x + OTHER", "x - OTHER"),
        ("functools.partial(Kept().tidy)", "late = 1", "late = 2"),
        ("log", "late = 1", "late = 2"),
        ("parse", "x + 20", "x + 21"),  # registered by a decorator of the module
        ("parse", "start = 30", "start = 31"),
        ("names", "x + 20", "x + 21"),
        ("names", "x + 50", "x + 51"),  # registered by a call
        ("late", "LATER = 40", "LATER = 41"),
        ("parse_csv", "raise ValueError(name)", "raise KeyError(name)"),  # its decorator
        ("quick(bare)", "+ 8", "+ 9"),
        ("quick(bare)", "def bare(x):\n    return x", "def bare(x):\n    return -x"),
        ("log", "KEEP = []", "KEEP = [1]"),
        ("Loader.make", "return cls()", "return cls"),
        ("Loader.plain", "        return x\n", "        return +x\n"),
        ("chosen", "return -x", "return ~x"),
        ("chosen", "math.pi > 3", "math.pi > 2"),
        ("fallback", "    def fallback(x):\n        return x", "    def fallback(x):\n        return +x"),
        ("area", "return 3", "return 4"),
        ("counts", "OTHER = 1", "OTHER = 2"),
        ("bare", "def bare(x):", "async def bare(x):"),
        ("bare", "def bare(x):", "def bare(x=None):"),
    ],
)
def test_what_a_step_runs_is_its_code(load, of, old, new):
    assert CODE.count(old) >= 1
    before, after = load(CODE), load(CODE.replace(old, new))
    assert step_fingerprint(eval(of, vars(before))) != step_fingerprint(eval(of, vars(after)))


@pytest.mark.parametrize(
    ("of", "old", "new"),
    [
        ("step", '    """Do it."""\n', ""),
        ("step", '    """Do it."""\n', "    'Does it otherwise.'\n"),
        ("step", "    # twice\n", "    # doubled  # type: ignore\n\n"),
        ("step", "return x * by", "return (x\n            * by)"),
        ("step", "import math", "import math\nimport json"),
        ("step", "OTHER = 1", "OTHER = 2"),  # names nothing of it
        ("step", "def bare(x):\n    return x", "def bare(y):\n    return y"),
        ("step", "def outer(x):", "def outmost(x):"),
        ("Loader", '    """Loads."""\n\n', ""),
        ("Loader", "LIMIT = 10", "LIMIT = 12"),
        ("shadow", "OTHER = 1", "OTHER = 2"),  # a local variable
        ("shadow", "x * by", "x ** by"),  # a parameter
        ("shadow", "LIMIT = 10", "LIMIT = 12"),  # a variable of a comprehension
        ("shadow", "n == 0 or", "n == 1 or"),  # a parameter of a lambda
        ("bare", "x * by", "x ** by"),
        ("parse_csv", "start = 30", "start = 31"),  # registered beside it
        ("parse_csv", "x + 50", "x + 51"),
        ("log", "logging.basicConfig(level=30)", "logging.basicConfig(level=10)"),  # another module's, by its name only
    ],
)
def test_what_a_step_does_not_run_is_not(load, of, old, new):
    assert CODE.count(old) >= 1
    before, after = load(CODE), load(CODE.replace(old, new))
    assert step_fingerprint(eval(of, vars(before))) == step_fingerprint(eval(of, vars(after)))


def test_the_order_of_the_definitions_in_a_file_does_not_count(load):
    parts = ["A = 1", "def one(x):\n    return two(x) + A", "def two(x):\n    return B + x", "B = 2", "C = 3"]
    found = {
        step_fingerprint(load("\n\n\n".join(order)).one)
        for order in (parts, parts[::-1], parts[2:] + parts[:2], [*parts, "def three(): ..."])
    }
    assert len(found) == 1


def test_the_order_of_the_definitions_of_one_name_counts(load):
    parts = ["def f(x):\n    return g(x)", "def g(x):\n    return 1", "def g(x):\n    return 2"]
    assert step_fingerprint(load("\n".join(parts)).f) != step_fingerprint(load("\n".join(parts[::2] + parts[1:2])).f)


def test_the_file_and_the_process_do_not_count(load, tmp_path):
    here = step_fingerprint(load(CODE).step)
    assert step_fingerprint(load(CODE, tmp_path / "elsewhere.py").step) == here
    assert step_fingerprint(load("\n\n# moved down\n" + CODE).step) == here


def test_a_module_that_is_imported_again_is_read_again_and_one_that_is_only_edited_is_not(load, tmp_path):
    file = tmp_path / "edited.py"
    source = "def f():\n    return 1\n\n\ndef g():\n    return 1\n"
    first, same = load(source, file), load(source)
    before = step_fingerprint(first.f)
    file.write_text(source.replace("1", "22"))
    assert step_fingerprint(first.g) == step_fingerprint(same.g)  # asked for only now, and still what was imported
    second = load(file.read_text(), file)
    assert before == step_fingerprint(first.f) == step_fingerprint(same.f) != step_fingerprint(second.f)
    assert step_fingerprint(first.g) != step_fingerprint(second.g)


def test_a_module_that_is_reloaded_and_a_script_that_is_run_again_are_read_again(load, tmp_path, monkeypatch):
    file = tmp_path / "reloaded_flow.py"
    monkeypatch.syspath_prepend(tmp_path)
    file.write_text("def f():\n    return 1\n")
    module = importlib.import_module("reloaded_flow")
    before, ran = step_fingerprint(module.f), step_fingerprint(runpy.run_path(str(file))["f"])
    file.write_text("def f():\n    return 1 + 1\n")
    assert before == ran != step_fingerprint(runpy.run_path(str(file))["f"])
    importlib.reload(module)
    again = step_fingerprint(module.f)
    file.write_text("def f():\n    return 1 + 1 + 1\n")
    importlib.reload(module)
    assert before != again != step_fingerprint(module.f)


def test_a_warning_about_the_source_is_no_obstacle(load):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = load('def f():\n    return "\\d"\n')
    assert step_fingerprint(module.f) != ""


def test_source_that_is_not_what_was_imported_gives_no_fingerprint(load, tmp_path):
    file = tmp_path / "changed.py"
    module = load("def f():\n    return 1\n", file)
    file.write_text("X = 1\n\n\ndef f():\n    return 1\n")
    assert step_fingerprint(module.f) == ""
    module = load("class C:\n    def f(self):\n        return 1\n\n\n", file)
    file.write_text("class C:\n    A = 1\n\n    def f(self):\n        return 1\n")
    assert step_fingerprint(module.C.f) == step_fingerprint(module.C().f) == ""


@pytest.mark.parametrize(
    "function",
    [json.dumps, statistics.mean, json.JSONEncoder, json.JSONEncoder().encode, pytest.raises, functools.partial(json.dumps)],
    ids=stable,
)  # fmt: skip
def test_the_standard_library_and_installed_packages_are_known_by_name_only(function):
    assert step_fingerprint(function) == ""


def test_a_project_near_site_packages_is_not_an_installed_package(load, tmp_path, monkeypatch):
    installed = tmp_path / "project/.venv/lib/site-packages"
    monkeypatch.setattr(functions, "_installed_directories", lambda: {installed})
    places = {
        "project/flow.py": True,
        "project/.venv/lib/site-packages-of-mine/flow.py": True,
        "site-packages/project/flow.py": True,
        "project/.venv/lib/site-packages/package/flow.py": False,
    }
    for place, is_known in places.items():
        file = tmp_path / place
        file.parent.mkdir(parents=True, exist_ok=True)
        assert bool(step_fingerprint(load("def f(): ...", file).f)) == is_known, place
    (installed / "linked").symlink_to(tmp_path / "project")
    assert step_fingerprint(load("def f(): ...", installed / "linked/again.py").f)


def test_what_the_project_wraps_around_an_installed_function_is_code(load):
    source = """
        import functools, json
        def again(function):
            @functools.wraps(function)
            def wrapper(*args):
                return function(*args), 1
            return wrapper
        dumps = again(json.dumps)
        """
    one, two = load(source).dumps, load(source.replace("), 1", "), 2")).dumps
    assert "" != step_fingerprint(one) != step_fingerprint(two)


class Hostile:
    __hash__ = None

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __call__(self):
        return 1


class Circle:
    def __call__(self):
        return 1


def test_nothing_that_is_called_makes_the_fingerprint_fail():
    namespace: dict = {}
    exec("def typed():\n    return 1", namespace)
    circle = Circle()
    circle.__wrapped__ = circle
    assert step_fingerprint(namespace["typed"]) == step_fingerprint(len) == step_fingerprint([].append) == ""
    assert step_fingerprint(type("Made", (), {})) == step_fingerprint(3) == ""
    assert step_fingerprint(Hostile()) == ""
    assert step_fingerprint(circle).startswith("2:")


def test_an_object_that_cannot_be_hashed_is_known_by_its_class(load):
    module = load("class Call:\n    __hash__ = None\n    def __call__(self):\n        return 1\n")
    assert step_fingerprint(module.Call()) == step_fingerprint(module.Call) != ""


def test_an_expression_of_a_thousand_terms_has_a_fingerprint(load):
    source = "def f(x):\n    return " + " + ".join(["x"] * 1000) + "\n"
    assert step_fingerprint(load(source).f) != "" != fingerprint_of_source(source)
    assert fingerprint_of_source(f"X = {hex(10**5000)}") != ""


# --- laws ------------------------------------------------------------------------------------------------------------

LINES = ["x = a + {0}", "if a > {0}:", "    return helper({0})", "y = [{0} for b in a]", "print(a, {0})", "return {0}"]


@given(st.lists(st.integers(0, 9), min_size=6, max_size=6), st.data())
@settings(max_examples=40, deadline=None)
def test_reformatting_never_changes_a_fingerprint_and_another_constant_always_does(load, numbers, data):
    body = [line.format(number) for line, number in zip(LINES, numbers, strict=True)]
    source = "\n".join(["def helper(x): return x", "def f(a):", *(f"    {line}" for line in body)])
    noise = st.sampled_from(["", "  # note", "  \n\n", "\n    # note\n"])
    again = "\n".join(line + ("" if line.endswith(":") else data.draw(noise)) for line in source.split("\n"))
    again = again.replace(" + ", data.draw(st.sampled_from(["+", "  +  ", " + \\\n   "])))
    changed = data.draw(st.integers(0, 5))
    other = [*numbers]
    other[changed] += 1
    moved = [line.format(number) for line, number in zip(LINES, other, strict=True)]
    different = "\n".join(["def helper(x): return x", "def f(a):", *(f"    {line}" for line in moved)])
    assert step_fingerprint(load(again).f) == step_fingerprint(load(source).f) != step_fingerprint(load(different).f)


# --- golden ----------------------------------------------------------------------------------------------------------

GOLDEN_CODE = '''
from dataclasses import dataclass
WIDTH, NAMES = 3, ("é", "\\U0001fae8", b"\\xff", 1e400, 2**70, 0x1ffffffffffffffffffffffff, 1j, ..., None)
@dataclass
class Row:
    """A row."""
    name: str = f"a{WIDTH!r:>{WIDTH}}b" "c"
    def show(self, *args: int, key=None, **more) -> "list[Row]":
        with open(self.name) as f, self:
            return f"{self.name=}" + f"{key:}" f"{{}}"
async def step(rows, /, limit: int = WIDTH, *, x=[]):
    try:
        async for row in rows:
            match row:
                case {"a": [1, *rest], **more} if rest: yield Row(*rest, **more)
                case Row(name="x") | None: del x[1:2, ::3]
                case _: pass
    except* ValueError as error: raise KeyError from error
    finally: print({**more, "a": {*rows}}, lambda a, *b: a if b else not a, (y := 1), NAMES)
'''
GOLDEN = "2:u4pVXv9na1j_jWukXdz_bw"


def test_the_fingerprint_of_a_step_is_fixed(load):
    """Under every version of Python: one that changes makes the code of every recorded run look changed."""
    assert step_fingerprint(load(GOLDEN_CODE).step) == GOLDEN


@pytest.mark.parametrize("python", ["python3.11", "python3.12", "python3.13", "python3.14"])
def test_the_fingerprint_is_the_same_under_other_pythons(python, tmp_path):
    found = shutil.which(python)
    if found is None or subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"no {python} here")
    file = tmp_path / "golden.py"
    file.write_text(GOLDEN_CODE, "utf-8")
    program = (
        "import sys; sys.path[:] = [*sys.argv[1:3], *sys.path, sys.argv[3]]\n"
        "import golden; from flowckpt.core.identity.fingerprint import step_fingerprint; print(step_fingerprint(golden.step))"
    )
    packages = [str(Path(functions.__file__).parents[1]), str(tmp_path), str(Path(attrs.__file__).parents[1])]
    done = subprocess.run([found, "-c", program, *packages], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.strip() == GOLDEN, done.stderr


def test_an_empty_piece_of_a_format_is_none():
    """Python 3.12 finds one in the first, where 3.11 and 3.13 do not."""
    assert fingerprint_of_source('f"{x:>{w}}"') == FSTRING


FSTRING = "ast:v1:b0e3d80332fea7d7aeae8907e3516152d2e70366cb4186fa12bcfb1e4723674e"


# --- speed -----------------------------------------------------------------------------------------------------------


def test_the_second_call_is_a_look_up(load):
    function = load(CODE).step
    step_fingerprint(function)
    took = min(timeit.repeat(lambda: step_fingerprint(function), number=2000, repeat=5, timer=time.process_time)) / 2000
    assert took < 5e-6  # measured 0.12 µs; the bound leaves room for a busy machine
