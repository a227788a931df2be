"""A map of 500 members fits on one screen: in `show --steps`, `verify` and `diff`."""

from __future__ import annotations

import pytest

PROGRAM = """
from pathlib import Path
from flowckpt import step, workflow
from flowckpt.evidence import file_sha256

def write(number, factor):
    Path(f"{number}.txt").write_text(str(number * factor))
    return number * factor

def fail(number):
    if number % 2:
        raise ValueError(number)
    return number

@workflow
def files(factor: int = 1):
    yield step("before").python(abs, -1)
    yield step("write").map(write, range(500), factor=factor).evidence(lambda out: file_sha256(f"{out}.txt")).checkpoint()
    yield step("after").python(abs, -2).checkpoint()

@workflow
def fails():
    yield step("fail").map(fail, range(500), tolerate=500)
"""
SCREEN = 40


@pytest.fixture
def program(flowckpt):
    (flowckpt.directory / "files.py").write_text(PROGRAM)
    return flowckpt


def test_the_steps_and_the_claims_of_a_large_map_are_counted(program):
    program("run", "files.py:files", "--id", "r", "--every", "1000").expect(0)
    shown = program("show", "r", "--steps").expect(0).out
    assert len(shown.splitlines()) <= SCREEN, shown
    assert "500 ok" in shown and "495 more" in shown
    assert len(program("show", "r", "--steps", "--members").expect(0).out.splitlines()) > 1000


def test_many_failed_members_are_counted(program):
    program("run", "files.py:fails", "--id", "r").expect(0)
    shown = program("show", "r", "--steps").expect(0).out
    assert len(shown.splitlines()) <= SCREEN, shown
    assert "250 ok" in shown and "245 more failed or not ended" in shown


def test_verify_counts_what_holds_and_names_the_first_that_does_not(program):
    program("run", "files.py:files", "--id", "r").expect(0)
    verified = program("verify", "r").expect(0).out
    assert "write/[…]: 500 steps: their evidence holds" in verified
    assert len(verified.splitlines()) <= SCREEN
    for number in range(100):
        (program.directory / f"{number}.txt").unlink()
    verified = program("verify", "r").expect(10).out
    assert "write/[…]: 400 steps: their evidence holds" in verified
    assert "write/[…]: 95 more steps: their evidence does not hold" in verified
    assert len(verified.splitlines()) <= SCREEN, verified
    assert len(program("verify", "r", "--json").document["steps"]) == 500


def test_diff_counts_the_members_that_differ(program):
    program("run", "files.py:files", "--id", "a").expect(0)
    program("run", "files.py:files", "--id", "b", "-i", "factor=1").expect(0)
    program("run", "files.py:fails", "--id", "c").expect(0)
    same = program("diff", "a", "b").out
    assert len(same.splitlines()) <= 2 * SCREEN
    different = program("diff", "a", "c").out
    assert len(different.splitlines()) <= 2 * SCREEN, different
    assert "+ 495 more steps of fail/[…]" in different and "- 495 more steps of write/[…]" in different
