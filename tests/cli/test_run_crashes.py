"""`flowckpt run --check --crashes`: what a crash would break, from the shell."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLANTED = ROOT / "tests/testing/planted.py"
RELEASE = str(ROOT / "examples/release.py")


def test_a_mistake_is_reported_in_words(flowckpt):
    found = flowckpt("run", f"{PLANTED}:effect_before_checkpoint", "--check", "--crashes").expect(14)
    said = "`send` ran twice: the process died after it and before its checkpoint. Mark it at_most_once or claim its effect."
    assert said in found.out.splitlines()


def test_a_workflow_that_waits_gets_its_answers(flowckpt):
    answers = "--answer", "release=true", "--answer", 'mirrored={"servers": 3}'
    clean = flowckpt("run", RELEASE, "-i", "lines=1", "--check", "--crashes", "--json", *answers).expect(0)
    assert clean.document["is_safe"] and clean.document["histories"] > 10 and clean.document["findings"] == []
    assert not (flowckpt.directory / "release.txt").exists()
    refused = flowckpt("run", RELEASE, "--check", "--crashes").expect(1)
    assert "waits for 'release', which has no answer" in refused.err and "--answer release=JSON" in refused.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--crashes"], "--crashes needs --check"),
        (["--answer", "a=1"], "--answer needs --check --crashes"),
        (["--check", "--crashes", "--id", "x"], "--id has no effect with --check"),
        (["--check", "--crashes", "--answer", "a=yes"], "--answer a is not JSON"),
    ],
)
def test_options_that_make_no_sense_are_refused(flowckpt, words, said):
    assert said in flowckpt("run", RELEASE, *words).expect(2).err
