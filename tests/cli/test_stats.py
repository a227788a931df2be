"""`flowckpt store stats`, and what `show` picks of a run's checkpoints."""

from __future__ import annotations

import pytest

PROGRAM = """
from pathlib import Path
from flowckpt import step, workflow
from flowckpt.evidence import artifact_exists

def make():
    Path("made").write_text("x")

def load():
    if not Path("ready").exists():
        raise ValueError("not ready")

@workflow("shop")
def shop():
    yield step("make").python(make).evidence(artifact_exists("made")).checkpoint()
    yield step("load").python(load).checkpoint()
    yield step("prove").python(int, 1).evidence(artifact_exists("\\x1b[31mnowhere")).checkpoint()
"""


@pytest.fixture
def filled(flowckpt, tmp_path):
    """A run whose first attempt fails at a step, and whose second one at its evidence."""
    (tmp_path / "shop.py").write_text(PROGRAM)
    flowckpt("run", "shop.py:shop", "--id", "one").expect(1)
    (tmp_path / "ready").touch()
    flowckpt("resume", "one").expect(1)
    return flowckpt


def test_stats_counts_what_happened_and_show_picks_checkpoints(filled):
    document = filled("store", "stats", "--json").expect(0).document
    assert list(document) == [
        *("runs", "statuses", "checkpoints", "steps", "size", "stored_bytes", "mean_run_size", "days"),
        *("largest_runs", "largest_checkpoints", "verification", "failures", "slowest_steps", "figures", "unreadable"),
    ]
    assert (document["runs"], document["statuses"], document["steps"]) == (1, {"failed": 1}, 4)
    (day,) = document["days"]
    assert (day["runs"], day["checkpoints"], day["size"]) == (1, document["checkpoints"], document["size"])
    assert document["verification"] == {
        "claims": 2,
        "verified": 1,
        "failed": 1,
        "unknown": 0,
        "success_rate": 0.5,
        "kinds": [
            {
                "evidence_type": "artifact_exists",
                "claims": 2,
                "verified": 1,
                "failed": 1,
                "unknown": 0,
                "success_rate": 0.5,
            }
        ],
    }
    assert document["failures"] == [
        {"error_type": "ValueError", "steps": 1, "attempts": 1},
        {"error_type": "flowckpt.errors.EvidenceNotVerifiedError", "steps": 1, "attempts": 1},
    ]
    assert {step["path"]: step["times"] for step in document["slowest_steps"]} == {"make": 1, "load": 2, "prove": 1}
    files = [each for each in (filled.directory / ".flowckpt").rglob("*") if each.is_file()]
    assert document["stored_bytes"] == sum(each.stat().st_size for each in files) > document["size"]
    of_one = filled("store", "stats", "one", "--json").expect(0).document
    assert document["size"] < of_one["stored_bytes"] <= document["stored_bytes"]
    assert {**of_one, "stored_bytes": document["stored_bytes"]} == document

    text = filled("store", "stats", "one").expect(0).out
    assert text.splitlines()[0] == "run: one (failed)"
    assert "claims: 2, of which 1 held (50.0%)" in text
    assert "\x1b" not in text
    headings = [line.split("  ")[0] for line in text.splitlines() if line.isupper() or line.startswith("DAY")]
    assert headings == ["DAY (UTC)", "LARGEST CHECKPOINT", "SLOWEST STEP", "FAILED WITH", "CLAIM"]
    few = filled("store", "stats", "--limit", "1").expect(0).out
    assert few.splitlines()[0] == "runs: 1 (1 failed)"
    assert len(few.splitlines()) < len(text.splitlines())
    assert filled("store", "stats", "other").expect(12).out == ""
    filled("store", "stats", "--limit", "0").expect(2)

    def picked(*options):
        found = filled("show", "one", *options, "--json").expect(0).document["checkpoints"]
        return [(each["checkpoint_id"], each["attempt"], each["verified"]) for each in found]

    every = picked()
    assert every[0] == ("@started", 1, None)
    assert every[-1][1:] == (2, False)
    assert picked("--attempt", "2") == [each for each in every if each[1] == 2]
    assert picked("--verified", "yes") == [each for each in every if each[2] is True] != []
    assert picked("--verified", "no") == every[-1:]
    assert picked("--verified", "none") == every[:1]
    assert [name for name, *_ in picked("--reason", "started", "--reason", "step")] == [
        *("@started", "make", "@started.2", "load"),
    ]
    shown = filled("show", "one", "--attempt", "1", "--verified", "yes").expect(0).out
    assert shown.split("CHECKPOINT  ")[1].splitlines()[1].split()[0] == "make"
    none = filled("show", "one", "--attempt", "9").expect(0)
    assert "no checkpoint of this run matches" in none.err and "SEQUENCE" not in none.out
    filled("show", "one", "--reason", "other").expect(2)


def test_the_figures_of_an_empty_store_are_noughts(flowckpt):
    document = flowckpt("store", "stats", "--json").expect(0).document
    assert (document["runs"], document["mean_run_size"], document["verification"]["success_rate"]) == (0, None, None)
    assert flowckpt("store", "stats").expect(0).out.splitlines() == [
        "runs: 0",
        "checkpoints: 0, 0 B of records",
        "executed steps: 0",
        "claims: none",
    ]
