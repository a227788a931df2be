"""Whatever a secret is: no spelling of it in the record, in the events, or in the result."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flowckpt import MemoryCheckpointStore, Secret, WorkflowEngine, step, workflow
from flowckpt.core.codec.checkpoints import export_text
from flowckpt.errors import StepFailedError

sys.path.insert(0, str(Path(__file__).parent))

from test_known_secrets import SPELLINGS  # noqa: E402


def fail(way: str, token: Secret[str]) -> None:
    raise RuntimeError(SPELLINGS[way](token.reveal()), {token.reveal(): 1})


def take(*values: Any) -> int:
    return len(values)


def give(way: str, token: Secret[str]) -> Any:
    return {"rows": [SPELLINGS[way](token.reveal())]}


@workflow
def slipping(token: Secret[str]):
    plain = token.reveal()
    failures = []
    for made in [
        *(step(f"fail {way}").python(fail, way, token) for way in SPELLINGS),
        *(step(f"give {way}").python(give, way, token) for way in SPELLINGS),
        step("take").python(take, plain, [plain], {"a": {"b": plain.encode()}}, token),
    ]:
        try:
            yield made
        except StepFailedError as error:
            failures.append(str(error))
    raise ValueError(plain, failures)


safe = st.characters(exclude_categories=["Cs"], exclude_characters="\x00")


async def told_by_a_run(value: str) -> str:
    """All that a run tells and keeps whose secret is given."""
    engine = WorkflowEngine(MemoryCheckpointStore())
    events = [repr(event) async for event in engine.execute(slipping, workflow_id="run", token=value)]
    data = await engine.store.load_latest("run")
    assert data is not None
    assert [each.path for each in data.step_results if each.success] == ["take"]
    return "\n".join([*events, export_text(data), str(data.error)])


def spellings_in(text: str, value: str) -> set[str]:
    return {way for way, spelled in SPELLINGS.items() if spelled(value) in text or json.dumps(value)[1:-1] in text}


@pytest.fixture(scope="module")
def ordinary() -> str:
    """What any run tells: a secret that is a word of it, as `argument`, stands there whatever it is."""
    return asyncio.run(told_by_a_run("Zw9#-qÜ7/k+4~xJ"))


@settings(max_examples=25, deadline=None)
@given(value=st.text(safe, min_size=8, max_size=40))
def test_no_spelling_of_a_secret_leaves_its_run(ordinary, value):
    assume(len(set(value)) > 4 and not spellings_in(ordinary, value))
    assert not spellings_in(asyncio.run(told_by_a_run(value)), value)
