"""The figures of steps, as people and programs see them."""

from __future__ import annotations

from typing import Any

PROGRAM = """
from flowckpt import current_step, step, workflow

def ask(question):
    current_step().record(tokens=1200, cost_usd=0.02)

def load():
    current_step().record(rows=10_000)

@workflow("agent")
def agent():
    yield step("ask").map(ask, ["a", "b"]).checkpoint()
    yield step("load").python(load).checkpoint()
"""


def test_the_figures_are_shown_for_a_step_for_a_run_and_for_a_store(flowckpt: Any, tmp_path: Any) -> None:
    (tmp_path / "agent.py").write_text(PROGRAM)
    figures = {"tokens": 2400, "cost_usd": 0.04, "rows": 10000}
    line = "figures: cost_usd=0.04 rows=10,000 tokens=2,400"
    ended = flowckpt("run", "agent.py:agent", "--id", "one").expect(0)
    assert line in ended.out.splitlines()
    assert flowckpt("resume", "one", "--json").expect(0).document["figures"] == figures
    shown = flowckpt("show", "one", "--steps", "--members").expect(0).out
    assert line in shown.splitlines()
    assert "[rows=10,000]" in shown
    document = flowckpt("show", "one", "--json").expect(0).document
    assert document["figures"] == figures
    assert document["steps"][0]["figures"] == {"tokens": 1200, "cost_usd": 0.02}
    for arguments in (("store", "stats"), ("store", "stats", "one")):
        (cost, rows, tokens) = flowckpt(*arguments, "--json").expect(0).document["figures"]
        assert cost == {"name": "cost_usd", "steps": 2, "total": 0.04, "maximum": 0.02}
        assert (rows["total"], tokens["total"]) == (10000, 2400)
        (row,) = [each for each in flowckpt(*arguments).expect(0).out.splitlines() if each.startswith("tokens")]
        assert row.split() == ["tokens", "2", "2,400", "1,200", "1,200"]
    flowckpt("report", "one", "-o", "one.html").expect(0)
    assert '"figures":{"tokens":2400' in (tmp_path / "one.html").read_text().replace(" ", "")
