"""Runs that a run starts and wakes, from the shell: killed between the start and its record, and recovered."""

from __future__ import annotations

import json

import pytest

PROGRAM = """
import os, signal
from flowckpt import step, workflow

def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")
    return line

@workflow
def invoice(order: int):
    yield step("send").python(note, f"invoice {order}").checkpoint()
    return order

@workflow
def collects():
    first = yield step("first").wait("paid")
    second = yield step("second").wait("paid", timeout=0, default=None)
    yield step("note").python(note, f"paid {first} {second}")

def killed_once():
    if not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

@workflow
def orders():
    run = yield step("bill").start(invoice, order=7)
    yield step("tell").signal("books", "paid", 7)
    yield step("dies").python(killed_once).checkpoint()
    return run
"""


PRICES = """
from flowckpt import step, workflow

@workflow
def prices():
    while True:
        item = yield step("item").wait("price")
        yield step("answer").reply("item", {"item": item, "price": len(item)})
"""


@pytest.fixture
def shop(flowckpt):
    (flowckpt.directory / "shop.py").write_text(PROGRAM)
    return flowckpt


def test_a_kill_between_the_start_and_its_record_starts_one_run_and_sends_one_signal(shop):
    shop("run", "shop.py:collects", "--id", "books").expect(3)
    shop("run", "shop.py:orders", "--id", "orders").expect(-9)
    listed = {each["workflow_name"]: each for each in shop("list", "--json").expect(0).document}
    bill = listed["invoice"]["workflow_id"]
    shown = shop("show", bill).expect(0).out
    assert "started by: bill of run orders" in shown
    ran = shop("resume", "orders", "--json").expect(0)
    assert ran.document["output"] == bill, "the same run"
    shop("recover").expect(0)
    assert {each["workflow_id"]: each["status"] for each in shop("list", "--json").expect(0).document} == {
        "orders": "completed",
        "books": "completed",
        bill: "completed",
    }
    assert shop("show", bill, "--json").expect(0).document["started_by"]["workflow_id"] == "orders"
    assert sorted({*shop.log()}) == ["invoice 7", "paid 7 None"]
    assert shop.log().count("paid 7 None") == 1
    assert json.loads(shop("show", "books", "--json").expect(0).out)["signals"] == []


def test_a_signal_is_sent_with_wait_and_the_reply_is_printed(shop):
    (shop.directory / "prices.py").write_text(PRICES)
    shop("run", "prices.py", "--id", "prices").expect(3)
    late = shop("signal", "prices", "price", "--data", '"tea"', "--id", "one", "--wait", "0").expect(75)
    assert "has no reply: the run has not replied after 0 s" in late.err
    shop("resume", "prices").expect(3)
    assert shop("signal", "prices", "price", "--id", "one", "--wait").expect(0).out == '{"item": "tea", "price": 3}\n'
    document = shop("signal", "prices", "price", "--id", "one", "--wait", "--json").expect(0).document
    assert (document["reply"], document["is_new"]) == ({"item": "tea", "price": 3}, False)
    assert "exclude each other" in shop("signal", "prices", "price", "--wait", "--resume").expect(2).err


def test_a_run_that_no_process_has_run_yet_is_listed_so_and_recovered(shop):
    (shop.directory / "shop.py").write_text(
        PROGRAM.replace('    yield step("tell")', '    killed_once()\n    yield step("tell")')
    )
    shop("run", "shop.py:orders", "--id", "orders").expect(-9)
    assert "created, not run yet" in shop("list").expect(0).out
    [bill] = [each["workflow_id"] for each in shop("list", "--workflow", "invoice", "--json").expect(0).document]
    assert "no process has run it yet" in shop("show", bill).expect(0).out
    shop("cancel", "orders", "--no-rollback").expect(0)
    recovered = shop("recover").expect(0)
    assert "another run started it" in recovered.err + recovered.out
    assert shop.log() == ["invoice 7"]


QUEUED = """
import subprocess, sys, time
from flowckpt import step, workflow

def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")

def cancel(run):
    subprocess.run([sys.executable, "-m", "flowckpt", "cancel", run], check=True)

def fail():
    raise OSError("no network")

@workflow
def invoice(order: int):
    yield step("charge").python(note, f"charge {order}").checkpoint()
    yield step("paid").wait("paid")

@workflow
def shop():
    yield step("bill").start(invoice, order=1).rollback(cancel).checkpoint()
    yield step("fail").python(fail)

@workflow
def leaves():
    yield step("first").python(note, "first").checkpoint()
    sys.exit(0)

@workflow
def starter():
    yield step("start").start(leaves).checkpoint()
    yield step("wait").python(time.sleep, 0.5).checkpoint()
    return (yield step("last").python(note, "last").checkpoint())
"""


def test_a_run_that_was_cancelled_before_its_process_began_it_is_not_begun(flowckpt):
    (flowckpt.directory / "shop.py").write_text(QUEUED)
    flowckpt("run", "shop.py:shop", "--id", "one").expect(1)
    found = {each["workflow_name"]: each["status"] for each in flowckpt("list", "--json").document}
    assert found == {"shop": "failed", "invoice": "cancelled"}
    assert flowckpt.log() == []


def test_an_exit_in_a_started_run_ends_only_that_run(flowckpt):
    (flowckpt.directory / "shop.py").write_text(QUEUED)
    ran = flowckpt("run", "shop.py:starter", "--id", "one", "--json").expect(0)
    assert ran.document["status"] == "completed" and "called sys.exit(0), and has failed" in ran.err
    assert sorted(flowckpt.log()) == ["first", "last"]


def test_a_workflow_that_exits_with_0_has_failed_with_1(flowckpt):
    (flowckpt.directory / "shop.py").write_text(QUEUED)
    ran = flowckpt("run", "shop.py:leaves", "--id", "one").expect(1)
    assert "the workflow called sys.exit(0), so the run has failed" in ran.err
    assert flowckpt("show", "one", "--json").document["status"] == "failed"
