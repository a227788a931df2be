"""A step changes its arguments or what its function holds: a resumed run ends like a clean run, or the run warns."""

from __future__ import annotations

import os
import re

import pytest

from tests.forked import run_module

PROGRAM = """
import asyncio
import dataclasses
import functools
import os
from collections import Counter, deque
from pathlib import Path

from flowckpt import parallel, step, workflow


@dataclasses.dataclass
class Order:
    lines: list = dataclasses.field(default_factory=list)
    paid: bool = False

    def pay(self):
        self.paid = True


def crash():
    if not Path("crashed").exists():
        Path("crashed").touch()
        os._exit(9)


def add(rows, *more):
    rows.append(3)


async def add_async(rows):
    await asyncio.sleep(0)
    rows.append(3)


def add_key(table):
    table["b"] = 2


def add_deep(table):
    table["rows"][0].append(3)


def add_cell(frame):
    frame["b"][0].append(3)


def add_first(series):
    series.iloc[0].append(3)
    series.iloc[1].add(3)


def add_line(order):
    order.lines.append("tea")


def drop(data, name):
    data.drop(columns=name, inplace=True)


def zero(numbers):
    numbers[:] = 0


def fail(rows):
    rows.append(3)
    if len(rows) < 5:
        raise ValueError(len(rows))
    return len(rows)


def sort(rows):
    rows.sort()
    return rows


def call(function):
    function()


def show(value):
    return repr(value) if not hasattr(value, "dtypes") else f"{value!r} {value.dtypes!r}"


@workflow
def flow():
    {make}
    {change}
    yield step("crash").python(crash).checkpoint()
    return (yield step("show").python(show, value).checkpoint())
"""

CHANGES = {
    "list": ("value = [2, 1]", 'yield step("add").python(add, value).checkpoint()'),
    "keyword": ("value = [2, 1]", 'yield step("add").python(add, rows=value).checkpoint()'),
    "partial": ("value = [2, 1]", 'yield step("add").python(functools.partial(add, value)).checkpoint()'),
    "async": ("value = [2, 1]", 'yield step("add").python(add_async, value).checkpoint()'),
    "on a thread": ("value = [2, 1]", 'yield step("add").python(add, value).timeout(60).checkpoint()'),
    "on an executor": ("value = [2, 1]", 'yield step("add").python(add, value).on("threads").checkpoint()'),
    "at most once": ("value = [2, 1]", 'yield step("add").python(add, value).at_most_once().checkpoint()'),
    "of a map": ("value = [[1], [2]]", 'yield step("add").map(add, value).checkpoint()'),
    "of a group": (
        "value = [1]",
        'yield parallel(step("one").python(add, value), step("two").python(add, value)).checkpoint()',
    ),
    "dict": ('value = {"a": 1}', 'yield step("add").python(add_key, value).checkpoint()'),
    "nested": ('value = {"rows": [[1]]}', 'yield step("add").python(add_deep, value).checkpoint()'),
    "Counter": ('value = Counter("a")', 'yield step("add").python(add_key, value).checkpoint()'),
    "deque": ("value = deque([1])", 'yield step("add").python(add, value).checkpoint()'),
    "data class": ("value = Order()", 'yield step("add").python(add_line, value).checkpoint()'),
    "data frame": ('import pandas; value = pandas.DataFrame({"a": [1], "b": [2]})', 'yield step("drop").python(drop, value, "b").checkpoint()'),
    "cells": ('import pandas; value = pandas.DataFrame({"a": [1, 2], "b": [[1], [2]], "c": ["x", "y"]})', 'yield step("add").python(add_cell, value).checkpoint()'),
    "series": ('import pandas; value = pandas.Series([[1], {2}, "x"], name="s")', 'yield step("add").python(add_first, value).checkpoint()'),
    "array": ("import numpy; value = numpy.arange(3)", 'yield step("zero").python(zero, value).checkpoint()'),
    "UserDict": ('import collections; value = collections.UserDict({"a": 1})', 'yield step("add").python(add_key, value).checkpoint()'),
    "ChainMap": ('import collections; value = collections.ChainMap({"a": 1})', 'yield step("add").python(add_key, value).checkpoint()'),
    "UserList": ("import collections; value = collections.UserList([1])", 'yield step("add").python(add, value).checkpoint()'),
    "arguments of a command": ("import argparse; value = argparse.Namespace(rows=[1])", 'yield step("set").python(setattr, value, "rows", 2).checkpoint()'),
    "pandas array": ("import pandas; value = pandas.array([1, 2])", 'yield step("zero").python(zero, value).checkpoint()'),
    "categories": ('import pandas; value = pandas.Categorical(["a", "b"])', 'yield step("set").python(value.__class__.__setitem__, value, 0, "b").checkpoint()'),
    "partial as an argument": ("inner = [1]; value = functools.partial(add, inner)", 'yield step("call").python(call, value).checkpoint(); value = inner'),
    "returned": ("value = [2, 1]", 'value = yield step("sort").python(sort, value).checkpoint()'),
    "returned and dropped": ("value = [2, 1]", 'yield step("sort").python(sort, value).checkpoint()'),
}  # fmt: skip


@pytest.fixture
def call(tmp_path):
    def call(*arguments, code=0):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        ended, said, trouble = run_module("flowckpt", [*arguments], cwd=tmp_path, env=environment)
        assert ended == code, (said, trouble)
        return said, trouble

    return call


def output(said):
    return re.search(r"^output: (.*)$", said, re.MULTILINE)[1]


def write(directory, make, change):
    (directory / "flow.py").write_text(PROGRAM.replace("{make}", make).replace("{change}", change))


@pytest.mark.parametrize("name", CHANGES)
def test_a_resumed_run_ends_like_a_clean_run_whatever_a_step_does_to_its_arguments(name, tmp_path, call):
    write(tmp_path, *CHANGES[name])
    where = ["--executor", "threads=thread"] if name == "on an executor" else []
    call("run", "flow.py", "--id", "crashed", *where, code=9)
    resumed, _ = call("resume", "crashed", *where)
    clean, _ = call("run", "flow.py", "--id", "clean", *where)
    assert output(resumed) == output(clean)
    again, _ = call("resume", "clean", *where)
    assert "0 executed" in again and output(again) == output(clean)


def test_a_step_that_returns_nothing_but_changes_its_argument_gets_a_warning(tmp_path, call):
    write(tmp_path, *CHANGES["dict"])
    (tmp_path / "crashed").touch()
    _, trouble = call("run", "flow.py")
    assert "step add changes 'table' and returns None" in trouble
    assert "return the changed value" in trouble
    write(tmp_path, *CHANGES["returned"])
    assert "changes" not in call("run", "flow.py")[1]


def test_each_try_gets_the_arguments_as_they_were(tmp_path, call):
    write(tmp_path, "value = [1]", 'yield step("fail").python(fail, value).retry(5)')
    assert "failed with ValueError: 2" in call("run", "flow.py", code=1)[1]


def test_a_step_with_a_cursor_is_tried_again(tmp_path, call):
    make = "import sqlite3; value = yield step('open').python(sqlite3.connect, ':memory:').ephemeral()"
    write(tmp_path, make, 'yield step("ask").python(ask, value.cursor()).retry(3); value = 1')
    ask = "def ask(cursor):\n    if not crash():\n        raise ValueError(cursor.execute('SELECT 7').fetchone())\n"
    text = (tmp_path / "flow.py").read_text().replace("os._exit(9)", "return False\n    return True")
    (tmp_path / "flow.py").write_text(text.replace("def show", f"{ask}\n\ndef show"))
    assert output(call("run", "flow.py")[0]) == "'1'"


def test_a_step_that_has_used_up_an_iterator_is_not_tried_again(tmp_path, call):
    write(tmp_path, "value = [1]", 'yield step("fail").python(fail, iter([[1]])).retry(5)')
    (tmp_path / "flow.py").write_text(
        (tmp_path / "flow.py").read_text().replace("rows.append(3)\n    if", "rows = [*rows]\n    if")
    )
    trouble = call("run", "flow.py", code=1)[1]
    assert "failed with ValueError: 1" in trouble
    assert "is an iterator, and the try has used up a part of it. Pass a list" in trouble


HOLDING = """
import os
from pathlib import Path

from flowckpt import step, workflow


class Client:
    def __init__(self, rate):
        self.rate = rate
        self.calls = 0

    def bill(self, count):
        {count}
        return count * self.rate


def crash():
    if not Path("crashed").exists():
        Path("crashed").touch()
        os._exit(9)


def times(rate):
    def bill(count):
        return count * rate

    return bill


@workflow
def flow():
    client = Client(2)
    bag = []
    first = yield step("first").python({function}, 3).checkpoint()
    second = yield step("second").python({function}, 4).checkpoint()
    yield step("crash").python(crash).checkpoint()
    return first, second
"""


def write_holding(directory, function, *, rate=2, count="pass"):
    text = HOLDING.replace("{function}", function).replace("{count}", count)
    (directory / "flow.py").write_text(
        text.replace("Client(2)", f"Client({rate})").replace("times(2)", f"times({rate})")
    )


def test_an_edit_of_what_a_closure_holds_stops_the_resume(tmp_path, call):
    write_holding(tmp_path, "times(2)")
    (tmp_path / "crashed").touch()
    call("run", "flow.py", "--id", "one")
    assert "0 executed, 3 restored" in call("resume", "one")[0]
    write_holding(tmp_path, "times(2)", rate=5)
    assert "rate, which the step's function holds, has changed" in call("resume", "one", code=10)[1]
    resumed, _ = call("resume", "one", "--on-code-change", "rerun")
    assert output(resumed) == output(call("run", "flow.py", "--id", "clean")[0])


def test_the_cache_takes_no_result_of_a_method_of_an_object_that_cannot_be_compared(tmp_path, call):
    write_holding(tmp_path, "client.bill")
    text = (tmp_path / "flow.py").read_text().replace(", 3)", ", 3).cache()")
    (tmp_path / "flow.py").write_text(text)
    (tmp_path / "crashed").touch()
    assert output(call("run", "flow.py")[0]) == "(6, 8)"
    (tmp_path / "flow.py").write_text(text.replace("Client(2)", "Client(5)"))
    said, trouble = call("run", "flow.py")
    assert output(said) == "(15, 20)"
    assert "the argument 'self' cannot be compared" in trouble


@pytest.mark.parametrize("count", ["pass", "self.calls += 1", "self.cache = {}"])
def test_a_client_that_counts_or_caches_makes_nothing_stale(count, tmp_path, call):
    write_holding(tmp_path, "client.bill", count=count)
    _, trouble = call("run", "flow.py", "--id", "one", code=9)
    assert "in place" not in trouble
    assert "1 executed, 2 restored" in call("resume", "one")[0]
    assert "0 executed, 3 restored" in call("resume", "one")[0]


def test_a_method_that_changes_its_data_class_gets_a_warning(tmp_path, call):
    write(tmp_path, "value = Order()", 'yield step("pay").python(value.pay).checkpoint()')
    (tmp_path / "crashed").touch()
    said, trouble = call("run", "flow.py")
    assert "paid=True" in said
    assert "step pay changes 'self' in place; a resumed run reuses its result without this change" in trouble


def test_a_step_that_appends_to_a_list_of_the_workflow_gets_a_warning(tmp_path, call):
    write_holding(tmp_path, "bag.append")
    (tmp_path / "crashed").touch()
    _, trouble = call("run", "flow.py", "--id", "one")
    assert "step first changes 'self' in place" in trouble
    assert "0 executed, 3 restored" in call("resume", "one")[0]


def test_an_edit_of_a_method_has_one_reason(tmp_path, call):
    write_holding(tmp_path, "client.bill")
    (tmp_path / "crashed").touch()
    call("run", "flow.py", "--id", "one")
    write_holding(tmp_path, "client.bill", count="count += 1")
    trouble = call("resume", "one", code=10)[1]
    assert "was edited" in trouble and "function holds" not in trouble


def test_an_edit_of_the_class_of_an_object_that_another_one_holds_stops_the_resume(tmp_path, call):
    text = """
from flowckpt import step, workflow


class Rates:
    def find(self):
        return 2


def bill(parts, count):
    return parts["rates"].find() * count


@workflow
def flow():
    return (yield step("bill").python(bill, {"rates": Rates()}, 3).checkpoint())
"""
    (tmp_path / "flow.py").write_text(text)
    call("run", "flow.py", "--id", "one")
    assert "0 executed, 1 restored" in call("resume", "one")[0]
    (tmp_path / "flow.py").write_text(text.replace("return 2", "return 3"))
    assert "parts: its code, or code of the project that it uses, was edited" in call("resume", "one", code=10)[1]


@pytest.mark.parametrize(
    ("argument", "edit"),
    [
        ("key=lambda row: -row", ("-row", "row")),
        ("key=rank", ("return -row", "return row")),
        ("key=Rank(-1).of", ("self.sign * row", "-self.sign * row")),
    ],
)
def test_an_edit_of_a_function_that_is_passed_as_an_argument_stops_the_resume(argument, edit, tmp_path, call):
    text = f"""
from flowckpt import step, workflow


class Rank:
    def __init__(self, sign):
        self.sign = sign

    def of(self, row):
        return self.sign * row


def rank(row):
    return -row


@workflow
def flow():
    return (yield step("sort").python(sorted, [1, 3, 2], {argument}).checkpoint())
"""
    (tmp_path / "flow.py").write_text(text)
    assert output(call("run", "flow.py", "--id", "one")[0]) == "[3, 2, 1]"
    assert "0 executed, 1 restored" in call("resume", "one")[0]
    (tmp_path / "flow.py").write_text(text.replace(*edit))
    assert "key: its code, or code of the project that it uses, was edited" in call("resume", "one", code=10)[1]
    assert output(call("resume", "one", "--on-code-change", "rerun")[0]) == "[1, 2, 3]"


def test_a_step_may_be_added_to_a_workflow_that_uses_nested_functions(tmp_path, call):
    text = """
from flowckpt import step, workflow

WEIGHT = 1


class Scale:
    def __init__(self, by):
        self.by = by

    def of(self, row):
        return row * self.by


@workflow
def flow():
    def down(row):
        return weigh(row, -1)

    def weigh(row, sign):
        return sign * row * WEIGHT

    def scale(rows, by=-1):
        return [Scale(by).of(row) for row in rows]

    rows = yield step("sort").python(sorted, [1, 3, 2], key=lambda row: -row).checkpoint()
    rows = yield step("again").python(sorted, rows, key=down).checkpoint()
    yield step("scale").python(scale, rows).checkpoint()
    # more
    return rows
"""
    program = tmp_path / "flow.py"
    program.write_text(text)
    assert output(call("run", "flow.py", "--id", "one")[0]) == "[3, 2, 1]"
    program.write_text(text.replace("# more", 'yield step("more").python(len, rows)'))
    assert "1 executed, 3 restored" in call("resume", "one")[0]
    for name, before, after in (
        ("sort", "lambda row: -row", "lambda row: -2 * row"),
        ("again", "sign * row", "sign * 2 * row"),
        ("again", "WEIGHT = 1", "WEIGHT = 2"),
        ("scale", "by=-1", "by=-2"),
        ("scale", "of(row) for", "of(row + 1) for"),
    ):
        program.write_text(text.replace(before, after))
        trouble = call("resume", "one", code=10)[1]
        assert f"step '{name}'" in trouble and "code" in trouble


def test_a_nested_function_that_calls_itself_holds_only_what_it_holds(tmp_path, call):
    text = """
from flowckpt import step, workflow


@workflow
def flow():
    rate = 3

    def power(count):
        return rate * power(count - 1) if count else 1

    yield step("power").python(power, 2).checkpoint()
    return (yield step("map").python(list, [*map(power, [1, 2])]).checkpoint())
"""
    (tmp_path / "flow.py").write_text(text)
    assert output(call("run", "flow.py", "--id", "one")[0]) == "[3, 9]"
    assert "0 executed, 2 restored" in call("resume", "one")[0]


INPUTS = """
import argparse
import collections
import os
from pathlib import Path

from flowckpt import step, workflow


def crash():
    if not Path("crashed").exists():
        Path("crashed").touch()
        os._exit(9)


def bill(order):
    with Path("ledger").open("a") as ledger:
        ledger.write("bill\\n")
    return len(order)


@workflow
def child(order: dict[str, int]):
    order["tax"] = order.get("tax", 0) + 7
    yield step("bill").python(bill, order){once}.checkpoint()
    return order["tax"]


@workflow
def flow(order: dict[str, int] = {"net": 1}):
    order["gross"] = order.get("gross", 0) + 1
    taxes = {children}
    yield step("crash").python(crash).checkpoint()
    return order, taxes
"""


@pytest.mark.parametrize("once", ["", ".at_most_once()"])
@pytest.mark.parametrize(
    ("children", "bills"),
    [
        ('yield step("child").workflow(child, order=order).checkpoint()', 1),
        ('yield step("children").map(child, [order] * 3, concurrency=2).checkpoint()', 3),
    ],
    ids=["child", "map"],
)
def test_what_a_workflow_does_to_its_inputs_is_seen_by_no_other(children, bills, once, tmp_path, call):
    (tmp_path / "flow.py").write_text(INPUTS.replace("{children}", children).replace("{once}", once))
    call("run", "flow.py:flow", "--id", "one", code=9)
    call("resume", "one")
    said, _ = call("resume", "one")
    assert "0 executed" in said
    taxes = 7 if bills == 1 else [7] * 3
    assert output(said) == str(({"net": 1, "gross": 1}, taxes))
    assert output(call("run", "flow.py:flow", "--id", "clean")[0]) == output(said)
    assert (tmp_path / "ledger").read_text() == "bill\n" * bills * 2


def test_the_dictionary_that_a_program_passes_as_an_input_stays_as_it_was(tmp_path):
    from flowckpt import MemoryCheckpointStore, WorkflowEngine, workflow

    @workflow
    def flow(order: dict[str, int]):
        order["gross"] = 3
        return order
        yield

    order = {"net": 1}
    assert WorkflowEngine(MemoryCheckpointStore()).run_sync(flow, order=order).output == {"net": 1, "gross": 3}
    assert order == {"net": 1}
