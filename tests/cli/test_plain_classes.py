"""Outputs of the program's own data classes need no annotation, and a record names no other class."""

from __future__ import annotations

import importlib
import sys

import pytest

from flowckpt.core import codec
from flowckpt.core.codec import tags
from flowckpt.errors import DecodingError
from tests.cli.conftest import Command
from tests.forked import run_module

MODELS = """
from collections import namedtuple
from dataclasses import dataclass, field
from enum import Enum

import attrs
from pydantic import BaseModel

class Kind(Enum):
    BOOK = "book"

@dataclass
class Line:
    title: str
    kind: Kind

@attrs.frozen
class Receipt:
    total: float

@dataclass
class Order:
    lines: list[Line]
    extra: object = None

class Customer(BaseModel):
    name: str
    age: int = 3

Place = namedtuple("Place", "street number")

class Outer:
    @dataclass
    class Inner:
        number: int
"""
SHOP = """
import os
import sys
from fractions import Fraction

import models
from attrs import frozen
from pydantic.fields import FieldInfo
from flowckpt import step, workflow

@frozen
class Local:
    place: object

def fetch():
    line = models.Line("Momo", models.Kind.BOOK)
    place = models.Place("Main Street", 4)
    return {"orders": [models.Order([line], extra=models.Receipt(2.5))], "who": models.Customer(name="x"), (1, 2): Local(place)}

def bill(found):
    if os.path.exists("fails"):
        raise ValueError("not yet")
    return models.Outer.Inner(len(found["orders"][0].lines))

@workflow
def shop():
    found = yield step("fetch").python(fetch).checkpoint()
    yield step("bill").python(bill, found).checkpoint()
    order = found["orders"][0]
    same = [type(order) is models.Order, type(order.lines[0].kind) is models.Kind, type(order.extra) is models.Receipt,
            type(found["who"]) is models.Customer, found["who"].model_fields_set == {"name"},
            type(found[1, 2]) is Local, type(found[1, 2].place) is models.Place]
    return {"same": all(same), "seen": repr(found)}

@workflow
def billed():
    return (yield step("bill").python(bill, {"orders": [models.Order([])]}))

if __name__ == "__main__":
    from flowckpt import RunOptions, run_sync
    print(run_sync(shop, workflow_id="r").status)
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    monkeypatch.setattr(tags, "_REGISTERED", {})
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "shop.py").write_text(SHOP)
    return Command(tmp_path)


@pytest.mark.parametrize(
    "start",
    [("run", "shop.py:shop", "--id", "r"), ("script",), ("run", "shop.py:shop", "--id", "r", "--executor", "process")],
)
def test_values_of_plain_classes_come_back_as_they_were(shop, start):
    """Also from a script, and from workers, where the module of a class has another name."""
    (shop.directory / "fails").touch()
    if start == ("script",):
        code, out, err = run_module("shop", [], cwd=shop.directory, env=shop.environment)
        assert "failed" in out, err
    else:
        shop(*start).expect(1)
    (shop.directory / "fails").unlink()
    resumed = shop("resume", "r", "--json").expect(0).document
    assert resumed["steps"] == {"executed": 1, "restored": 1, "failed": 0}
    clean = shop("run", "shop.py:shop", "--json").expect(0).document
    assert resumed["output"] == clean["output"]
    assert clean["output"]["same"] is True


def test_the_output_of_the_workflow_needs_none_either(shop):
    shop("run", "shop.py:billed", "--id", "r").expect(0)
    again = shop("resume", "r").expect(0)
    assert "output: Outer.Inner(number=0)" in again.out
    assert shop("show", "r", "--json").document["output"] == {"$as": ["models.Outer.Inner", {"number": 0}]}


REFUSED = {
    "a class of a function": ("@dataclass\n    class Mine:\n        x: int\n    return Mine(1)", "make.<locals>.Mine"),
    "a class of a module that is only imported when the step runs": (
        "import late\n    return late.Late(1)",
        "late.Late",
    ),
    "an object with more than its fields": (
        "made = Known(1)\n    made.more = 2\n    return made",
        "it.more would be lost",
    ),
    "a value that it cannot hold": ("return [Known(print)]", "output[0].x is a builtin_function_or_method"),
    "an untyped list of others": (
        "return Holder([Known(1)])",
        "it.items[0] is a program.Known and would come back as a dict",
    ),
    "a class of an installed package that is not imported by name": (
        "import pydantic.fields\n    return pydantic.fields.FieldInfo",
        "output is a",
    ),
    "a class of flowckpt": ("return flowckpt.step('x').python(print)", "never yielded"),
}
PROGRAM = """
import flowckpt
from dataclasses import dataclass
from flowckpt import step, workflow

@dataclass
class Known:
    x: object

@dataclass
class Holder:
    items: list

def make():
    {body}

@workflow
def program():
    yield step("make").python(make)
"""


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_not_come_back_is_refused_when_the_step_ends(tmp_path, case):
    body, said = REFUSED[case]
    (tmp_path / "late.py").write_text("from dataclasses import dataclass\n@dataclass\nclass Late:\n    x: int\n")
    (tmp_path / "program.py").write_text(PROGRAM.format(body=body))
    ran = Command(tmp_path)("run", "program.py").expect(1)
    assert said in ran.err


def test_a_class_that_is_gone_is_named_with_the_way_to_replace_it(shop):
    (shop.directory / "fails").touch()
    shop("run", "shop.py:shop", "--id", "r").expect(1)
    (shop.directory / "fails").unlink()
    (shop.directory / "models.py").write_text(MODELS.replace("class Receipt", "class Bill"))
    (shop.directory / "shop.py").write_text(SHOP.replace("models.Receipt", "models.Bill"))
    gone = shop("resume", "r", "--on-code-change", "reuse")
    assert gone.code != 0 and "'models.Receipt'" in gone.err and "register_type(…, name='models.Receipt')" in gone.err
    edited = SHOP.replace("models.Receipt", "models.Bill").replace(
        "@frozen\n", "flowckpt.register_type(models.Bill, name='models.Receipt')\n@frozen\n"
    )
    (shop.directory / "shop.py").write_text(f"import flowckpt\n{edited}")
    assert shop("resume", "r", "--on-code-change", "reuse", "--json").expect(0).document["output"]["same"] is True


OTHERS = [
    "subprocess.Popen",
    "json.JSONDecoder",
    "os.stat_result",
    "unused.Unused",
    "argparse.Namespace",
    "shop.shop",
    "shop.sys.flags",
    "shop.models.Receipt",
    "models.BaseModel",
    "flowckpt.core.dsl.step.Step",
    "models",
    "Receipt",
    "",
    ".",
]


def test_a_record_cannot_name_any_other_class(shop, monkeypatch):
    """A person who can write to the store chooses the name: nothing is imported, called or built by it."""
    unused = "from dataclasses import dataclass\n@dataclass\nclass Unused:\n    pass\nopen('imported', 'w')\n"
    (shop.directory / "unused.py").write_text(unused)
    monkeypatch.chdir(shop.directory)
    monkeypatch.syspath_prepend(str(shop.directory))
    for name in ("shop", "models"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.import_module("shop")
    try:
        made = codec.decode({"$as": ["models.Receipt", {"total": 2.5}]})
        assert made == sys.modules["models"].Receipt(2.5)
        for name in (*OTHERS, 1, None, ["models.Receipt"]):
            with pytest.raises(DecodingError, match="which is not registered"):
                codec.decode({"$as": [name, {}]})
        assert not (shop.directory / "imported").exists()
        assert "unused" not in sys.modules
    finally:
        sys.modules.pop("shop"), sys.modules.pop("models")


TREES = """
import os
import attrs
from dataclasses import dataclass
from flowckpt import step, workflow

@dataclass
class Node:
    name: str
    children: list["Node"]

@attrs.define
class Shelf:
    parts: dict[str, list["Shelf"]]

def plant() -> Node:
    return Node("root", [Node("leaf", [])])

def build():
    return Shelf({"left": [Shelf({})]})

def lists() -> dict[str, list["Node"]]:
    return {"trees": [plant()]}

def wait_for(file):
    if not os.path.exists(file):
        raise ValueError("not ready")

def inside(define):
    @define
    class Pair:
        left: "Pair | None"

    @define
    class Tree(Pair):
        children: list["Tree"]
        pairs: list["Pair"]

    def grow() -> Tree:
        return Tree(Pair(None), [Tree(None, [], [])], [Pair(None)])

    return grow

@workflow
def trees():
    found = []
    for grow in (plant, build, lists, inside(dataclass), inside(attrs.define)):
        found.append((yield step("grow").python(grow)))
    yield step("wait").python(wait_for, "ready").checkpoint()
    return repr(found)
"""


def test_a_class_that_names_itself_inside_an_annotation_comes_back(tmp_path):
    flowckpt = Command(tmp_path)
    (tmp_path / "trees.py").write_text(TREES)
    flowckpt("run", "trees.py", "--id", "r").expect(1)
    (tmp_path / "ready").touch()
    resumed = flowckpt("resume", "r", "--json").expect(0).document
    assert resumed["steps"] == {"executed": 1, "restored": 5, "failed": 0}
    assert resumed["output"].count("Node(name='leaf', children=[])") == 2
    assert resumed["output"].count("Shelf(parts={})") == 1 and resumed["output"].count("Tree(") == 4


@pytest.mark.parametrize("returns", [" -> Stat", ""], ids=["annotated", "not annotated"])
def test_a_step_on_a_dask_cluster_of_this_machine_returns_one_as_it_does_here(flowckpt, tmp_path, returns):
    (tmp_path / "stats.py").write_text(f"""
from __future__ import annotations
from dataclasses import dataclass
from decimal import Decimal
from flowckpt import step, workflow

@dataclass(frozen=True)
class Stat:
    total: Decimal

def extract(){returns}:
    return Stat(Decimal("1.5"))

@workflow
def stats():
    return (yield step("extract").python(extract).checkpoint())
""")
    here = flowckpt("run", "stats.py", "--json").expect(0).document
    there = flowckpt("run", "stats.py", "--json", "--executor", "dask:local:1").expect(0).document
    assert there["output"] == here["output"]
