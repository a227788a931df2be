"""A workflow whose annotation says that its output cannot be stored is refused before its first step."""

from __future__ import annotations

import asyncio
import io
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, TextIO, TypedDict

import numpy as np
import pandas as pd
import pytest

from flowckpt import MemoryCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.errors import EncodingError, StepFailedError

ran: list[str] = []


class Model:
    pass


class Shape:
    pass


@dataclass
class Circle(Shape):
    radius: float = 1.0


class Named(Protocol):
    name: str


class Row(TypedDict):
    number: int


class UserId(int):
    pass


def declared(returns: Any) -> Any:
    def flow():
        yield step("first").python(ran.append, "first")

    flow.__annotations__["return"] = returns
    return workflow(flow)


UNSTORABLE = [
    (pd.DataFrame, "pandas.*DataFrame", "Write it to a file"),
    (pd.Timestamp, "Timestamp", "to_pydatetime"),
    (np.ndarray, "numpy.ndarray", "tolist"),
    (type("Tensor", (), {"__module__": "torch"}), "torch.Tensor", "Write it to a file"),
    (np.float64, "numpy.float64", r"float\(x\)"),
    (Callable, "Callable", "Annotate"),
    (Callable[[int], int], "Callable", "Annotate"),
    (TextIO, "TextIO", "Annotate"),
    (IO[bytes], "IO", "Annotate"),
    (io.BufferedReader, "BufferedReader", "Annotate"),
    (sqlite3.Connection, "sqlite3.Connection", "ephemeral"),
    (threading.Thread, "threading.Thread", "ephemeral"),
    (type, "type", "Annotate"),
    (Model, "Model", "register_type"),
    (UserId, "UserId", "register_type"),
    (list[pd.DataFrame], "DataFrame", "Write it to a file"),
    (dict[str, tuple[int, Model]], "Model", "register_type"),
    (pd.DataFrame | pd.Series, "DataFrame", "Write it to a file"),
]


@pytest.mark.parametrize(("returns", "said", "remedy"), UNSTORABLE, ids=lambda case: str(case)[:30])
@pytest.mark.parametrize("is_generator", [True, False])
def test_it_is_refused_before_the_first_step(returns, said, remedy, is_generator):
    ran.clear()
    store = MemoryCheckpointStore()
    engine = WorkflowEngine(store)
    flow = declared(Generator[Any, Any, returns] if is_generator else returns)
    with pytest.raises(EncodingError, match=f"the workflow's output is annotated as .*{said}, which cannot be stored"):
        engine.run_sync(flow, workflow_id="r")
    with pytest.raises(EncodingError, match=remedy):
        engine.run_sync(flow, workflow_id="r")
    assert ran == []
    assert asyncio.run(store.load_latest("r")) is None


STORABLE = [
    None,
    Any,
    object,
    int,
    Path,
    Circle,
    Shape,
    Named,
    Row,
    Exception,
    StepFailedError,
    Sequence[int],
    list[dict[str, Any]],
    pd.DataFrame | None,
    Generator[Any, Any, int],
    Iterator[Any],
    tuple[int, str, Circle],
]


@pytest.mark.parametrize("returns", STORABLE, ids=str)
def test_what_may_be_stored_is_run(returns):
    ran.clear()
    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(declared(returns))
    assert (result.status, ran) == ("completed", ["first"])


def test_a_child_is_refused_before_its_first_step():
    ran.clear()

    @workflow
    def parent():
        yield step("child").workflow(declared(pd.DataFrame))

    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(parent)
    assert "child: output is annotated as pandas" in str(result.error)
    assert ran == []
