"""`flowckpt tag`, `flowckpt checkpoint` and `flowckpt list --waiting`: asked of runs that live, wait, died and ended."""

from __future__ import annotations

import os
import signal

import pytest

PROGRAM = """
import os, time
from flowckpt import parallel, step, workflow

def tick():
    time.sleep(0.02)
    with open("log", "a") as file:
        file.write("tick\\n")
    return os.path.exists("stop")

def end(how):
    if how == "die":
        os.kill(os.getpid(), 9)
    if how == "fail":
        raise ValueError("no")

@workflow
def ticks():
    count = 0
    while not (yield step("tick").python(tick)):
        count += 1
    return count

@workflow
def ends(how: str):
    yield step("first").python(int, "1").checkpoint()
    if how == "wait":
        yield parallel(step("paid").wait("paid"), step("sign").approval("sign"))
    yield step("end").python(end, how)
    return 7
"""


@pytest.fixture
def labels(flowckpt):
    (flowckpt.directory / "p.py").write_text(PROGRAM)
    return flowckpt


def test_the_process_of_a_live_run_saves_what_it_is_asked_for(labels):
    owner = labels.start("run", "p.py:ticks", "--id", "r", "--tag", "team=data", "--tag", "draft=1")
    labels.wait_for("tick")
    done = labels("checkpoint", "r", "--json").expect(0).document
    assert done["steps"] >= 1
    assert labels("tag", "r", "a=1", "--remove", "draft").expect(0).out == "tags of r: team=data a=1\n"
    assert labels("list", "--tag", "a=1", "--json").document[0]["tags"] == {"team": "data", "a": "1"}
    os.kill(owner.pid, signal.SIGKILL)
    owner.communicate(timeout=120)
    assert labels("show", "r", "--json").document["tags"] == {"team": "data", "a": "1"}
    (labels.directory / "stop").touch()
    ran = labels("resume", "r", "--json").expect(0).document
    assert ran["steps"]["restored"] >= done["steps"]
    assert labels("show", "r", "--json").document["tags"] == {"team": "data", "a": "1"}


@pytest.mark.parametrize(
    ("how", "code", "status", "store"),
    [
        ("none", 0, "completed", "file:runs"),
        ("fail", 1, "failed", "sqlite:runs.db"),
        ("wait", 3, "suspended", "sqlite:runs.db"),
        ("die", -9, "crashed", "file:runs"),
    ],
)
def test_a_run_without_a_process_keeps_its_status_and_its_history_when_it_is_tagged(labels, how, code, status, store):
    def command(*words):
        return labels(words[0], "--store", store, *words[1:])

    command("run", "p.py:ends", "--id", "r", "-i", f"how={how}", "--stay", "0").expect(code)
    before = command("show", "r", "--json").document
    assert command("tag", "r", "x=ö y", "b=2").expect(0).out == "tags of r: x=ö y b=2\n"
    after = command("show", "r", "--json").document
    for key in ("status", "output", "error", "waits", "steps", "crash_loop", "inputs"):
        assert after[key] == before[key]
    assert after["tags"] == {"x": "ö y", "b": "2"}
    assert [run["workflow_id"] for run in command("list", "--tag", "b=2", "--json").document] == ["r"]
    assert [run["workflow_id"] for run in command("list", "--tag", "b=3", "--json").document] == []
    assert command("store", "check").expect(0)
    ran = command("checkpoint", "r")
    assert ran.code == 2 and "no process runs 'r'" in ran.err


def test_a_tag_is_not_a_crash(labels):
    labels("run", "p.py:ends", "--id", "r", "-i", "how=die", "--max-crashes", "2").expect(-9)
    for number in range(5):
        labels("tag", "r", f"n={number}").expect(0)
    assert labels("list", "--json").document[0]["crash_loop"] is None
    labels("resume", "r").expect(-9)
    labels("tag", "r", "n=x").expect(0)
    assert labels("list", "--json").document[0]["crash_loop"]["count"] == 2
    assert "in a crash loop" in labels("resume", "r").expect(15).err


def test_mistakes_with_tags_are_explained(labels):
    labels("run", "p.py:ends", "--id", "r", "-i", "how=none").expect(0)
    assert "name a tag to change" in labels("tag", "r").expect(2).err
    assert "'a' is given a value and removed" in labels("tag", "r", "a=1", "--remove", "a").expect(2).err
    assert "K=V" in labels("tag", "r", "novalue").expect(2).err
    assert labels("tag", "nosuch", "a=1").code == 12
    assert labels("tag", "r", "--remove", "never").expect(0).out == "tags of r: none\n"


def test_list_shows_all_that_runs_wait_for(labels):
    labels("run", "p.py:ends", "--id", "w", "-i", "how=wait", "--stay", "0").expect(3)
    labels("run", "p.py:ends", "--id", "c", "-i", "how=none").expect(0)
    out = labels("list", "--waiting").expect(0).out
    assert "the signal 'paid'; waits for the approval 'sign'" in out and "\nc " not in out
    assert [run["workflow_id"] for run in labels("list", "--waiting", "--json").document] == ["w"]
