"""`flowckpt diff`: what differs between two runs or checkpoints."""

from __future__ import annotations

import asyncio

import pytest

from flowckpt import MemoryCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.maintenance.diff import compare

PROGRAM = """
from pathlib import Path
from flowckpt import step, workflow
from flowckpt.evidence import file_sha256

def fetch(limit, source):
    Path("raw.csv").write_text("x" * limit)
    return {"rows": [{"id": n, "tags": {"a", "b"}} for n in range(limit)], "pair": (limit, 1.0), "big": "y" * 100_000}

def extra():
    return 1

def last(fails):
    if fails:
        raise ValueError("no")
    return {1: "one"}

@workflow
def varies(limit: int = 2, source: Path = Path("a.csv"), is_extra: bool = False, fails: bool = False):
    yield step("fetch").python(fetch, limit, source).evidence(file_sha256("raw.csv")).checkpoint()
    if is_extra:
        yield step("extra").python(extra).checkpoint()
    return (yield step("last").python(last, fails).checkpoint())
"""


@pytest.fixture
def varies(flowckpt, tmp_path):
    (tmp_path / "varies.py").write_text(PROGRAM)
    flowckpt("run", "varies.py", "--id", "one").expect(0)
    return flowckpt


def test_two_runs_of_the_same_are_the_same(varies):
    varies("run", "varies.py", "--id", "two").expect(0)
    ran = varies("diff", "one", "two", "--exit-code").expect(0)
    assert ran.out.splitlines() == [
        "- run one, checkpoint @completed (sequence 4)",
        "+ run two, checkpoint @completed (sequence 4)",
        "nothing differs: 2 steps are the same",
    ]
    document = varies("diff", "one", "two", "--json").expect(0).document
    assert document["is_equal"] is True and document["steps"] == [] and document["changes"] == {}
    assert document["old"]["workflow_id"] == "one" and document["new"]["checkpoint_id"] == "@completed"


def test_inputs_outputs_evidence_and_steps(varies):
    varies("run", "varies.py", "--id", "two", "-i", "limit=3", "-i", "source=b.csv", "-i", "is_extra=yes").expect(0)
    ran = varies("diff", "one", "two", "--exit-code").expect(1)
    lines = ran.out.splitlines()
    for line in (
        "inputs.limit: 2 → 3",
        "inputs.source: 'a.csv' → 'b.csv'",
        "inputs.is_extra: False → True",
        "~ step fetch",
        "    output.pair[0]: 2 → 3",
        "    arguments.limit: 2 → 3",
        "    arguments.source: changed",
        "+ step extra",
        "steps: 1 added, 1 changed, 1 the same",
    ):
        assert line in lines, ran.out
    assert any(line.startswith("    output.rows[2]: added") for line in lines)
    assert any(line.startswith("    evidence.claims['the content of raw.csv'].sha256: '") for line in lines)
    assert varies("diff", "one", "two").expect(0).out == ran.out
    back = varies("diff", "two", "one", "--json").expect(0).document
    assert [(each["path"], each["kind"]) for each in back["steps"]] == [("fetch", "changed"), ("extra", "removed")]
    assert back["changes"]["inputs"][0] == {"place": "limit", "kind": "changed", "old": 3, "new": 2}
    assert back["same"] == 1


def test_a_failure(varies):
    varies("run", "varies.py", "--id", "two", "-i", "fails=yes").expect(1)
    document = varies("diff", "one", "two", "--json").expect(0).document
    assert document["changes"]["status"] == [{"place": "", "kind": "changed", "old": "completed", "new": "failed"}]
    changed = document["steps"][0]["changes"]
    assert changed["outcome"][0]["new"] == "failed" and changed["error"][0]["new"] == "ValueError: no"
    assert changed["output"][0]["old"] == {"$dict": [[1, "one"]]}
    assert "error: None → 'ValueError: no'" in varies("diff", "one", "two").out


def test_an_edit_of_the_code(varies, tmp_path):
    program = tmp_path / "varies.py"
    program.write_text(program.read_text().replace('"one"', '"eins"'))
    varies("run", "varies.py", "--id", "two").expect(0)
    lines = varies("diff", "one", "two").expect(0).out.splitlines()
    assert "    code.fingerprint: changed" in lines
    assert "    output[1]: 'one' → 'eins'" in lines


ALIKE = """
from pathlib import Path
from flowckpt import step, workflow

def make(is_new):
    long = "x" * 100
    return ({"a": (1, 2), "b": {3}, "c": Path("p"), "d": (4,), "e": long + "2"} if is_new
            else {"a": [1, 2], "b": frozenset([3]), "c": "p", "d": (4,), "e": long + "1"})

@workflow
def alike(is_new: bool = False):
    yield step("make").python(make, is_new).checkpoint()
"""


def test_the_two_sides_of_a_difference_never_look_the_same(flowckpt, tmp_path):
    (tmp_path / "alike.py").write_text(ALIKE)
    flowckpt("run", "alike.py", "--id", "one").expect(0)
    flowckpt("run", "alike.py", "--id", "two", "-i", "is_new=yes").expect(0)
    lines = flowckpt("diff", "one", "two").expect(0).out.splitlines()
    assert [line.strip() for line in lines if line.startswith("    output")] == [
        "output.a: list [1, 2] → tuple [1, 2]",
        "output.b: frozenset [3] → set [3]",
        "output.c: str 'p' → path 'p'",
        f"output.e: …{'x' * 20}1' → …{'x' * 20}2'",
    ]


def test_checkpoints_by_id_and_by_sequence(varies):
    document = varies("diff", "one@fetch", "one", "--json").expect(0).document
    assert [(each["path"], each["kind"]) for each in document["steps"]] == [("last", "added")]
    assert document["old"]["sequence"] == 2
    assert varies("diff", "one@2", "one", "--json").expect(0).document["old"]["checkpoint_id"] == "fetch"
    same = varies("diff", "one@@started", "one@1", "--exit-code").expect(0)
    assert same.out.splitlines() == [
        "- run one, checkpoint @started (sequence 1)",
        "+ run one, checkpoint @started (sequence 1)",
        "nothing differs: 0 steps are the same",
    ]
    varies("run", "varies.py", "--id", "a@b@fetch").expect(0)
    assert varies("diff", "a@b@fetch", "a@b@fetch@2", "--json").expect(0).document["new"]["sequence"] == 2
    for wrong, said in (
        ("two", "no run 'two'"),
        ("one@nothing", "no checkpoint 'nothing'"),
        ("one@", "no run 'one@'"),
        ("@", "no run '@'"),
        ("two@fetch", "no run 'two'"),
    ):
        ran = varies("diff", "one", wrong).expect(12)
        assert ran.out == "" and said in ran.err
    assert "Missing argument" in varies("diff", "one").expect(2).err


def test_a_run_with_its_fork(varies):
    varies("fork", "one", "--id", "two", "--from", "last").expect(0)
    varies("resume", "two").expect(0)
    ran = varies("diff", "one", "two", "--exit-code").expect(0)
    assert ran.out.splitlines() == [
        "- run one, checkpoint @completed (sequence 4)",
        "+ run two, checkpoint @completed.2 (sequence 4)",
        "nothing differs: 2 steps are the same",
    ]


def test_members_of_a_map_are_listed_by_number_in_whatever_order_they_ended():
    async def one(number: int, gates: list[asyncio.Event], factor: int) -> int:
        if number + 1 < len(gates):
            await gates[number + 1].wait()
        gates[number].set()
        return number * factor

    @workflow
    def mapped(factor: int = 1):
        gates = [asyncio.Event() for _ in range(12)]
        yield step("before").python(abs, factor)
        yield step("m").map(one, range(12), gates=gates, factor=factor, concurrency=12).checkpoint()
        yield step("after").python(abs, factor).checkpoint()

    store = MemoryCheckpointStore()
    engine = WorkflowEngine(store)
    for factor in (1, 2):
        assert engine.run_sync(mapped, workflow_id=f"r{factor}", factor=factor).status == "completed"
    old, new = (asyncio.run(store.load_latest(f"r{factor}")) for factor in (1, 2))
    ended = [result.path for result in new.step_results]
    assert ended.index("m/[11]") < ended.index("m/[10]") < ended.index("m/[2]") < ended.index("m")
    assert [each.path for each in compare(old, new).steps] == [
        "before", "m/[0]", *(f"m/[{number}]" for number in range(1, 12)), "after",
    ]  # fmt: skip
