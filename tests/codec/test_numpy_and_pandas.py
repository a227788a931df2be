"""What numpy and pandas return: taken where an annotation says the plain type, refused elsewhere with the way to go."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from flowckpt import MemoryCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.core import codec
from flowckpt.errors import EncodingError


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (np.float64(1.5), float, 1.5),
        (np.float32(0.5), float, 0.5),
        (np.int64(3), int, 3),
        (np.int64(3), float, 3),
        (np.bool_(True), bool, True),
        (np.str_("a"), str, "a"),
        ([np.int64(1), 2], list[int], [1, 2]),
        ({"a": np.float64(2.0)}, dict[str, float], {"a": 2.0}),
        ((np.int64(1), "b"), tuple[int, str], (1, "b")),
        ((np.int64(1), np.int64(2)), tuple[int, ...], (1, 2)),
        (np.float64(1.0), float | None, 1.0),
        ({np.str_("k"): [np.int64(1)]}, dict[str, list[int]], {"k": [1]}),
    ],
)
def test_a_scalar_is_taken_where_the_annotation_says_its_plain_type(value, annotation, expected):
    decoded = codec.decode(codec.encode(value, annotation), annotation)
    assert repr(decoded) == repr(expected)


@pytest.mark.parametrize(
    ("value", "annotation", "advice"),
    [
        (np.float64(1.5), object, r"Call float\(x\)"),
        (np.float64(1.5), int, r"Call float\(x\)"),
        ({"n": np.int64(1)}, dict, r"Call int\(x\)"),
        (np.bool_(True), str, r"Call bool\(x\)"),
        (np.arange(3), object, r"return the path.*\.tolist\(\)"),
        (pd.DataFrame({"a": [1]}), object, "Write it to a file, return the path, and claim the file"),
        (pd.Series([1]), object, r"return the path.*\.tolist\(\)"),
        (pd.Timestamp("2026-01-01"), object, r"\.to_pydatetime\(\)"),
        (pd.Timedelta("1s"), object, r"\.to_pytimedelta\(\)"),
    ],
)
def test_anything_else_is_refused_with_the_way_to_go(value, annotation, advice):
    with pytest.raises(EncodingError, match=advice):
        codec.encode(value, annotation)


def mean() -> float:
    return np.mean([1, 2])  # type: ignore[return-value]


def test_the_generator_gets_the_plain_value_on_the_first_run_too():
    seen = []

    @workflow
    def means():
        value = yield step("mean").python(mean).checkpoint()
        seen.append(type(value))
        return value

    assert WorkflowEngine(MemoryCheckpointStore()).run_sync(means).output == 1.5
    assert seen == [float]
