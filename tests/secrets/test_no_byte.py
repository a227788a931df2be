"""Whatever a program does with its secrets, no byte of them is on the disk or on a screen."""

from __future__ import annotations

import json

import pytest

GIVEN = ("-i", "token=@env:TOKEN", "-i", "pin=@env:PIN", "-i", "keys=@env:KEYS")


def test_a_run_that_lets_them_slip_in_every_way_leaves_no_trace_of_them(leaky):
    leaky("run", "leaky.py:leaky", "--id", "one", "--events", *GIVEN, code=1)
    shown = json.loads(leaky("show", "one", "--json"))
    steps = {each["path"]: each for each in shown["steps"]}
    assert steps["raises"]["error"]["message"] == "refused: (hidden)"
    assert steps["env"]["output"]["stdout"] == "(hidden)\n"
    assert steps["takes"]["output"] == 5
    assert sum(each["success"] for each in steps.values()) == 3, [p for p, each in steps.items() if each["success"]]
    assert shown["error"]["message"] == "(hidden)"
    leaky("show", "one", "--steps", "--checkpoints", "--history", code=None)
    leaky("show", "one", "--steps", "--checkpoints")
    leaky("list", "--json")
    leaky("export", "one")
    leaky("plan", "one", *GIVEN, code=None)
    leaky("plan", "one", "--json", code=None)
    leaky("plan", "one", "takes", *GIVEN, code=None)
    leaky("verify", "one", "--json", code=None)
    leaky("resume", "one", code=2)
    leaky("resume", "one", "--json", *GIVEN, code=1)
    leaky("resume", "one", "--from", "env", *GIVEN, code=1)
    leaky("fork", "one", "--id", "two", "--from", "takes", *GIVEN)
    leaky("diff", "one", "two", "--json")
    (leaky.directory / "ready").touch()
    leaky("resume", "two", *GIVEN)
    leaky("diff", "one", "two")
    assert not leaky.found()


@pytest.mark.parametrize("leaky", ["file:.flowckpt"], indirect=True, ids=["file"])
@pytest.mark.parametrize("end", ["name", "yield", "exit", "return"])
def test_an_end_that_would_tell_them_does_not(leaky, end):
    leaky("run", "leaky.py:leaky", "--id", "one", "-i", f"end={end}", *GIVEN, code=None)
    leaky("show", "one")
    assert not leaky.found()


@pytest.mark.parametrize("leaky", ["file:.flowckpt"], indirect=True, ids=["file"])
def test_the_search_finds_what_it_looks_for(leaky):
    """A proof that finds nothing proves something only if it could."""
    program = leaky.directory / "leaky.py"
    text = (
        program.read_text().replace("(token: Secret[str])", "(token: str)").replace("len(token.reveal())", "len(token)")
    )
    program.write_text(text)
    (leaky.directory / "quick").touch()
    leaky("run", "leaky.py:steady", "--id", "one", "-i", f"token={leaky.environment['TOKEN']}")
    assert leaky.found()


def test_a_killed_run_goes_on_with_the_secret_given_again_and_ends_the_same(leaky):
    leaky.kill_in("start 2", "run", "leaky.py:steady", "--id", "one", "-i", "token=@env:TOKEN")
    (leaky.directory / "quick").touch()
    leaky("resume", "--last", code=2)
    resumed = json.loads(leaky("resume", "--last", "--json", "-i", "token=@env:TOKEN"))
    whole = json.loads(leaky("run", "leaky.py:steady", "--id", "two", "--json", "-i", "token=@env:TOKEN"))
    assert (resumed["output"], resumed["status"]) == (whole["output"], whole["status"])
    assert resumed["steps"] == {"executed": 2, "restored": 2, "failed": 0}
    assert not leaky.found()
