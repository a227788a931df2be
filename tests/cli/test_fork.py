"""`flowckpt fork`: a new run from another's history."""

from __future__ import annotations

import pytest

TYPED = """
import attrs
from datetime import date
from enum import Enum
from pathlib import Path
from flowckpt import step, workflow

class Kind(Enum):
    SMALL = "s"
    LARGE = "l"

@attrs.frozen
class Order:
    day: date
    kinds: tuple[Kind, ...]
    file: Path

def order(limit: int) -> Order:
    return Order(date(2026, 1, 2), (Kind.SMALL,) * limit, Path("a"))

def plain(x):
    return {"n": 1}

def told(found: Order, other) -> str:
    return f"{found.day:%d.%m.} {[each.name for each in found.kinds]} {found.file.name} {other}"

@workflow
def orders(limit: int = 1):
    found = yield step("order").python(order, limit).checkpoint()
    other = yield step("plain").python(plain, found).checkpoint()
    return (yield step("told").python(told, found, other).checkpoint())
"""


@pytest.fixture
def orders(flowckpt, tmp_path):
    (tmp_path / "orders.py").write_text(TYPED)
    flowckpt("run", "orders.py", "--id", "one").expect(0)
    return flowckpt


def test_a_fork_is_a_run_of_its_own(shop):
    ran = shop("fork", "one", "--id", "two").expect(0)
    assert ran.out.splitlines() == [
        "run two is a fork of one at checkpoint @failed (sequence 5)",
        "results: 3 taken over, 1 left out",
    ]
    assert "Resume with: flowckpt resume two" in ran.err
    document = shop("show", "two", "--json").expect(0).document
    assert document["forked_from"] == {"workflow_id": "one", "checkpoint_id": "@failed", "sequence": 5}
    assert document["status"] == "suspended" and [step["attempt"] for step in document["steps"]] == [0, 0, 0]
    assert "forked from: one at checkpoint @failed (sequence 5)" in shop("show", "two").expect(0).out
    assert shop("resume", "two", "--json").expect(0).document["output"] == 7
    assert shop.log() == ["load"]
    assert shop("show", "one", "--json").expect(0).document["status"] == "failed"


def test_before_a_step(shop):
    document = shop("fork", "one", "--from", "count", "--json").expect(0).document
    assert document["forked_from"]["workflow_id"] == "one" and len(document["workflow_id"]) == 26
    assert (document["steps"], document["dropped"], document["edited"]) == (2, ["count", "load"], [])
    shop("resume", document["workflow_id"]).expect(0)
    assert shop.log() == ["count", "load"]


def test_outputs_get_the_types_of_their_steps(orders):
    value = '{"day": "2030-12-24", "kinds": ["LARGE", "s"], "file": "x/y"}'
    assert "edited: order" in orders("fork", "one", "--set", f"order={value}", "--id", "two").expect(0).out
    assert orders("resume", "two", "--json").expect(0).document["output"] == "24.12. ['LARGE', 'SMALL'] y {'n': 1}"
    orders("fork", "one", "--set", "plain=[1, null]", "--id", "three").expect(0)
    assert orders("resume", "three", "--json").expect(0).document["output"] == "02.01. ['SMALL'] a [1, None]"
    steps = orders("show", "three", "--json").expect(0).document["steps"]
    assert [step["marks"] for step in steps] == [[], ["edited"], []]
    assert "ok (edited)" in orders("show", "three", "--steps").expect(0).out
    # What was written by hand is reused like any other result, and compared like any other.
    assert orders("resume", "three", "--json").expect(0).document["steps"]["executed"] == 0


def test_a_fork_may_reject_what_a_resume_would_ask_for(flowckpt, tmp_path):
    (tmp_path / "gate.py").write_text(
        "from flowckpt import step, workflow\n"
        "@workflow\ndef gate():\n    answer = yield step('release').approval('release')\n"
        "    yield step('go').wait('go')\n    return answer.approved\n"
    )
    flowckpt("run", "gate.py", "--id", "one").expect(3)
    flowckpt("approve", "one", "release", "--resume").expect(3)
    rejected = 'release={"approved": false, "by": "ann", "comment": "", "decided_at": "2026-01-01T00:00:00Z"}'
    flowckpt("fork", "one", "--id", "two", "--set", rejected).expect(0)
    flowckpt("signal", "two", "go").expect(0)
    assert flowckpt("resume", "two", "--json").expect(0).document["output"] is False


def test_times_ids_and_numbers_of_a_fork_have_the_types_of_the_original(flowckpt, tmp_path):
    (tmp_path / "world.py").write_text(
        "from flowckpt import now, random, step, uuid, workflow\n"
        "def kinds(*values): return [type(value).__name__ for value in values]\n"
        "@workflow\ndef flow():\n    values = [(yield now()), (yield uuid()), (yield random())]\n"
        "    return (yield step('kinds').python(kinds, *values))\n"
    )
    clean = flowckpt("run", "world.py", "--id", "one", "--json").expect(0).document["output"]
    times, ids = 'now="2026-01-01T00:00:00Z"', 'uuid="00000000-0000-0000-0000-000000000005"'
    flowckpt("fork", "one", "--id", "two", "--set", times, "--set", ids, "--set", "random=1").expect(0)
    assert flowckpt("resume", "two", "--json").expect(0).document["output"] == clean == ["datetime", "UUID", "float"]
    refused = flowckpt("fork", "one", "--id", "three", "--set", 'now="tomorrow"')
    assert refused.code == 2 and "'now'" in refused.err
    refused = flowckpt("fork", "one", "--id", "three", "--set", 'now="2026-01-01T00:00:00"')
    assert (
        refused.code == 2 and "must be a time with its time zone, not 2026-01-01 00:00:00\nAdd the zone" in refused.err
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--set", "order=3"], "the output of step 'order' must be"),
        (["--set", 'order={"day": "x", "kinds": [], "file": ""}'], "at order.day"),
        (["--set", "told=hello"], "is not JSON"),
        (["--set", "told=hello"], "--set 'told=\"text\"'"),
        (["--set", "told"], "is not of the form"),
        (["--set", "told=1", "--set", "told=2"], "given twice"),
        (["--set", 'plain="a"', "--set", "plain[1]=1"], "has no step 'plain[1]'"),
        (["-i", "limit=many"], "input 'limit'"),
        (["-i", "other=1"], "no input 'other'"),
        (["--id", ""], "--id must be"),
        (["--id", "one"], "exists already"),
        (["--set", "plain=1", "-i", "limit=3"], "'order' is before an edited one and would run again"),
    ],
)
def test_what_cannot_be_is_said(orders, given, said):
    ran = orders("fork", "one", *given)
    assert ran.code in (2, 12) and said in ran.err and ran.out == ""
    assert [run["workflow_id"] for run in orders("list", "--json").document] == ["one"]


def test_the_output_of_a_map_is_set_by_its_members(flowckpt, tmp_path):
    (tmp_path / "map.py").write_text(
        "from flowckpt import step, workflow\n@workflow\ndef flow():\n    return (yield step('all').map(abs, [-1, -2], key=str))\n"
    )
    flowckpt("run", "map.py", "--id", "one").expect(0)
    refused = flowckpt("fork", "one", "--id", "two", "--set", "all=[7, 8]").expect(2)
    assert "it consists of the outputs of its members\nSet the output of a member, by its path." in refused.err


def test_other_inputs(orders):
    ran = orders("fork", "one", "-i", "limit=2", "--id", "two").expect(0)
    assert "input limit: 1 → 2" in ran.out
    plan = orders("plan", "two", "--json").expect(10).document
    assert plan["steps"][0]["reasons"] == [{"kind": "arguments", "detail": "limit: 1 → 2"}]
    assert "['SMALL', 'SMALL']" in orders("resume", "two", "--json").expect(0).document["output"]
    assert orders("fork", "one", "-i", "limit=2", "--id", "two").expect(2)


def test_what_no_longer_holds_is_not_taken_over(shop, tmp_path):
    (tmp_path / "clean.csv").unlink()
    ran = shop("fork", "one", "--id", "two").expect(10)
    assert "flowckpt fork one --from clean" in ran.err
    shop("fork", "one", "--id", "two", "--from", "clean").expect(0)
    shop("fork", "nobody").expect(12)
    shop("fork", "one", "--from", "nothing").expect(12)


HELD = """
import os, time
from flowckpt import step, workflow

def hold(number):
    with open("log", "a") as file:
        file.write("held\\n")
    while not os.path.exists("go"):
        time.sleep(0.01)
    return number

@workflow
def held():
    first = yield step("first").python(int, 1).checkpoint()
    return first + (yield step("hold").python(hold, 1).checkpoint())
"""


def test_a_run_that_is_going_on_can_be_forked(flowckpt):
    (flowckpt.directory / "held.py").write_text(HELD)
    process = flowckpt.start("run", "held.py", "--id", "one")
    try:
        flowckpt.wait_for("held")
        flowckpt("fork", "one", "--id", "two", "--set", "first=5").expect(0)
        assert process.poll() is None
        (flowckpt.directory / "go").touch()
        process.communicate(timeout=120)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
    assert flowckpt("resume", "two", "--json").expect(0).document["output"] == 6


TRIP = """
import os
from flowckpt import step, workflow

def book(what):
    if not os.path.exists(what):
        raise RuntimeError(f"no {what} is left")
    return log("book " + what)

def log(text):
    with open("ledger", "a") as file:
        file.write(text + "\\n")
    return text

def undo(booked):
    log("undo " + booked)

@workflow
def trip():
    yield step("flight").python(book, "flight").rollback(undo).checkpoint()
    yield step("hotel").python(book, "hotel").rollback(undo).checkpoint()
    yield step("car").python(book, "car").rollback(undo).checkpoint()
    return (yield step("train").python(book, "train").checkpoint())
"""


@pytest.fixture
def trip(flowckpt, tmp_path):
    (tmp_path / "trip.py").write_text(TRIP)
    for name in ("flight", "hotel", "car", "train"):
        (tmp_path / name).touch()
    return flowckpt


@pytest.mark.parametrize("options", [[], ["--checkpoint", "hotel"]])
@pytest.mark.parametrize("ends", ["failed", "cancelled"])
@pytest.mark.parametrize("store", [[], ["--store", "sqlite:runs.db"]], ids=["files", "sqlite"])
def test_undone_effects_are_not_taken_over(trip, tmp_path, options, ends, store):
    (tmp_path / "car").unlink()
    trip("run", "trip.py", "--id", "one", *store, *(["--no-rollback"] if ends == "cancelled" else [])).expect(1)
    if ends == "cancelled":
        trip("cancel", "one", *store).expect(0)
    (tmp_path / "car").touch()
    ran = trip("fork", "one", "--id", "two", *options, *store).expect(0)
    assert "results: 0 taken over" in ran.out
    assert ran.out.splitlines()[2] == "undone in run one, so run again with what follows: flight, hotel"
    assert trip("fork", "one", "--id", "two", *options, *store, "--json").document["undone"] == ["flight", "hotel"]
    plan = trip("plan", "two", *store, "--json").document
    assert [(each["path"], each["decision"]) for each in plan["steps"]] == [("flight", "new")]
    trip("resume", "two", *store).expect(0)
    undone = ["undo book hotel", "undo book flight"]
    booked = ["book flight", "book hotel", "book car", "book train"]
    assert (tmp_path / "ledger").read_text().splitlines() == [*booked[:2], *undone, *booked]


def test_a_failed_fork_leaves_the_effects_of_its_source(trip, tmp_path):
    trip("run", "trip.py", "--id", "one").expect(0)
    trip("fork", "one", "--from", "car", "--id", "two").expect(0)
    (tmp_path / "train").unlink()
    assert "undone: 1" in trip("resume", "two").expect(1).out
    lines = (tmp_path / "ledger").read_text().splitlines()
    assert lines[4:] == ["book car", "undo book car"]
    shown = trip("show", "two", "--steps").expect(0).out.splitlines()
    assert [line.split()[0] for line in shown if "can be undone" in line] == ["car"]
    assert trip("resume", "one", "--json").expect(0).document["steps"]["restored"] == 4
