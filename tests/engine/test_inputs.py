"""Inputs are bound, recorded and compared; a resume needs none, and refuses others."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pydantic
import pytest

from flowckpt import MemoryCheckpointStore, RunOptions, WorkflowEngine, in_sync, step, workflow
from flowckpt.core.dsl import Workflow
from flowckpt.engine import StepCounts
from flowckpt.errors import EncodingError, InputError, InputMismatchError


@attrs.frozen
class Settings:
    depth: int
    roots: tuple[Path, ...] = ()


def stops() -> None:
    raise RuntimeError("stop here")


def make(default: int = 1000) -> Workflow[..., Any]:
    @workflow("etl")
    def etl(source: str, limit: int = default, settings: Settings | None = None) -> Generator[Any, Any, Any]:
        yield step("first").python(str, source)
        yield step("stops").python(stops)
        return None

    return etl


def started(**inputs: Any) -> WorkflowEngine:
    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(make(), workflow_id="run", **inputs)
    return engine


def test_a_resume_without_inputs_uses_the_recorded_ones() -> None:
    seen: list[Any] = []

    @workflow("seen")
    def flow(source: str, settings: Settings) -> Generator[Any, Any, None]:
        seen.append((source, settings))
        yield step("stops").python(stops)

    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(flow, workflow_id="run", source="a.csv", settings=Settings(2, (Path("x"),)))
    engine.resume_sync(flow, workflow_id="run")
    assert seen == [("a.csv", Settings(2, (Path("x"),)))] * 2


@pytest.mark.parametrize(
    "given",
    [
        {"source": "a.csv"},
        {"source": "a.csv", "limit": 1000},
        {"limit": 1000},
        {"source": "a.csv", "limit": 1000, "settings": None},
    ],
)
def test_the_same_inputs_match_whether_or_not_defaults_were_given(given: dict[str, Any]) -> None:
    for recorded in ({"source": "a.csv"}, {"source": "a.csv", "limit": 1000}):
        engine = started(**recorded)
        began = asyncio.run(engine.store.load_latest("run"))
        result = engine.resume_sync(make(), workflow_id="run", **given)
        assert (result.attempt, result.steps) == (2, StepCounts(executed=1, restored=1, failed=1))
        latest = asyncio.run(engine.store.load_latest("run"))
        assert began is not None
        assert latest is not None
        assert latest.inputs_hash == began.inputs_hash
        assert [(each.path, each.output, each.attempt) for each in latest.step_results] == [
            ("first", "a.csv", 1),
            ("stops", None, 2),
        ]


def test_another_input_is_refused_naming_it_and_both_hashes() -> None:
    engine = started(source="a.csv", settings=Settings(1))
    with pytest.raises(InputMismatchError) as raised:
        engine.resume_sync(make(), workflow_id="run", source="b.csv", settings=Settings(2))
    error = raised.value
    assert error.differences == {"source": ("'a.csv'", "'b.csv'"), "settings.depth": ("1", "2")}
    assert "source: 'a.csv' → 'b.csv'" in str(error)
    assert error.expected_hash != error.actual_hash
    assert error.expected_hash.startswith("sha256:v1:")
    for digest in (error.expected_hash, error.actual_hash):  # whole as attributes, short in the text
        start = digest[: len("sha256:v1:") + 8]
        assert f"{start}…" in str(error) and digest not in str(error)


def test_a_changed_default_is_noticed_where_inputs_are_given_again() -> None:
    engine = started(source="a.csv")
    with pytest.raises(InputMismatchError, match="limit: 1000 → 2000"):
        engine.resume_sync(make(default=2000), workflow_id="run", source="a.csv")
    result = engine.resume_sync(make(default=2000), workflow_id="run")  # without inputs the record speaks
    assert result.steps.restored == 1
    latest = asyncio.run(engine.store.load_latest("run"))
    assert latest is not None
    assert latest.inputs["limit"] == 1000


def test_an_input_that_the_workflow_gained_since_is_a_difference() -> None:
    @workflow("etl")
    def newer(source: str, limit: int = 1000, settings: Any = None, mode: str = "fast") -> Generator[Any, Any, None]:
        yield step("first").python(str, source)

    for given in ({}, {"source": "a.csv"}):
        with pytest.raises(InputMismatchError, match=r"mode: \(missing\) → 'fast'") as raised:
            started(source="a.csv").resume_sync(newer, workflow_id="run", **given)
        assert "The workflow's parameters have changed" in raised.value.remedy  # to give none, or others, helps nobody
        assert newer.where in raised.value.remedy


class Model(pydantic.BaseModel):
    sku: str
    qty: int = 1


class LongerModel(Model):
    channel: str = "web"


class RenamedModel(pydantic.BaseModel):
    sku: str
    amount: int = 1


@dataclasses.dataclass(frozen=True)
class Data:
    sku: str
    qty: int = 1


@dataclasses.dataclass(frozen=True)
class LongerData(Data):
    channel: str = "web"
    number: int = dataclasses.field(default_factory=iter(range(100)).__next__)  # another one each time


def ordering(kind: Any, *, fails: bool = False, undone: list[str] | None = None) -> Workflow[..., Any]:
    def ship(sku: str) -> str:
        if fails:
            stops()
        return sku

    def flow(order: Any) -> Generator[Any, Any, Any]:
        yield step("book").python(str, order.sku).rollback(([] if undone is None else undone).append)
        yield step("ship").python(ship, order.sku)
        return (order.qty, getattr(order, "channel", None))

    flow.__annotations__["order"] = kind
    return workflow("ordering")(flow)


CLASSES = pytest.mark.parametrize(("kind", "longer"), [(Model, LongerModel), (Data, LongerData)], ids=["model", "data"])


def failed(kind: Any, order: Any) -> WorkflowEngine:
    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(ordering(kind, fails=True), workflow_id="run", options=RunOptions(rolls_back=False), order=order)
    return engine


@CLASSES
def test_a_field_with_a_default_that_the_class_of_an_input_has_gained_is_filled_in(kind: Any, longer: Any) -> None:
    for order in (kind(sku="a"), kind(sku="a", qty=5)):
        engine = failed(kind, order)
        began = asyncio.run(engine.store.load_latest("run"))
        newer = ordering(longer)
        planned = in_sync(engine).plan(newer, workflow_id="run")
        assert [each.decision for each in planned.steps][:1] == ["reuse"]
        result = engine.resume_sync(newer, workflow_id="run")
        clean = WorkflowEngine(MemoryCheckpointStore()).run_sync(newer, order=longer(sku="a", qty=order.qty))
        assert result.output == clean.output == (order.qty, "web")
        assert (result.steps.restored, result.steps.executed) == (1, 1)
        latest = asyncio.run(engine.store.load_latest("run"))
        assert began is not None and latest is not None
        assert (latest.inputs_hash, latest.inputs) == (began.inputs_hash, began.inputs)


def test_the_same_inputs_match_with_a_field_that_their_class_has_gained() -> None:
    newer = ordering(LongerModel)
    for how in ("resume", "run"):
        engine = failed(Model, Model(sku="a"))
        given_again = partial(engine.run_sync, if_exists="resume") if how == "run" else engine.resume_sync
        call = partial(given_again, newer, workflow_id="run")
        for other, differences in (
            (LongerModel(sku="b"), {"order.sku": ("'a'", "'b'")}),
            (
                LongerModel(sku="a", channel="app"),
                {"order.channel": ("'web'", "'app'"), "order (fields not set)": ("['qty', 'channel']", "['qty']")},
            ),
        ):
            with pytest.raises(InputMismatchError) as raised:
                call(order=other)
            assert raised.value.differences == differences
        assert call(order=LongerModel(sku="a")).output == (1, "web")


@CLASSES
def test_a_run_whose_input_has_gained_a_field_can_be_undone_forked_and_opened(kind: Any, longer: Any) -> None:
    undone: list[Any] = []
    newer = ordering(longer, undone=undone)
    engine = failed(kind, kind(sku="a"))
    history = engine.open("run", workflow=newer)
    assert history.at("ship").locals["order"].channel == "web"
    in_sync(engine).fork("run", new_id="fork")
    assert engine.resume_sync(newer, workflow_id="fork").output == (1, "web")
    in_sync(engine).cancel("run", workflow=newer)
    assert undone == ["a"]


def test_a_recorded_field_that_a_model_would_ignore_is_a_difference() -> None:
    """Else a run that was started with qty=5 would continue with amount=1."""
    for order in (Model(sku="a", qty=5), Model(sku="a")):
        engine = failed(Model, order)
        again: dict[str, Any] = {"order": RenamedModel(sku="a")}
        for given in ({}, again):
            with pytest.raises(InputMismatchError) as raised:
                engine.resume_sync(ordering(RenamedModel), workflow_id="run", **given)
            assert raised.value.differences["order.qty"] == (str(order.qty), "(missing)")
            assert raised.value.differences["order.amount"] == ("(missing)", "1")
            assert "$unset" not in str(raised.value)


def test_unknown_and_missing_inputs_are_named() -> None:
    engine = WorkflowEngine(MemoryCheckpointStore())
    with pytest.raises(InputError, match="no input 'sauce'.*source, limit, settings"):
        engine.run_sync(make(), sauce="a.csv")
    with pytest.raises(InputError, match="lacks its input 'source'"):
        engine.run_sync(make())


def test_an_input_that_cannot_be_recorded_is_refused_before_anything_runs() -> None:
    with pytest.raises(EncodingError, match="input source is a object"):
        WorkflowEngine(MemoryCheckpointStore()).run_sync(make(), source=object())


def test_an_input_may_have_the_name_of_any_python_variable_but_the_engines_own() -> None:
    @workflow
    def flow(workflow: int, self: int, engine: int, inputs: int) -> Generator[Any, Any, int]:
        return (yield step("sum").python(sum, [workflow, self, engine, inputs]))

    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(flow, workflow=1, self=2, engine=3, inputs=4)
    assert result.output == 10


def test_an_input_that_cannot_be_recorded_is_refused_with_what_can_be_done_about_an_input() -> None:
    with pytest.raises(EncodingError, match="input settings is a") as raised:
        started(source="a.csv", settings=object())
    assert "parameter" in raised.value.remedy
    assert "ephemeral" not in raised.value.remedy
    assert raised.value.place == "input settings"
