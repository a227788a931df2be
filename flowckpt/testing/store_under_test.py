"""The base of the conformance tests of the store port: the store under test, and records to save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, time
from typing import Any, ClassVar

import pytest

from flowckpt.core.records import CheckpointData, StepResult
from flowckpt.core.records.listing import RunInfo
from flowckpt.stores.adapted import AdaptedStore, CheckpointStore, adapt
from flowckpt.stores.base import Ability, Lease, StoreBase

RUN = "run-1"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOSTILE_IDS = (
    "../x",
    "..",
    ".",
    "",
    "/",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a\x00b",
    "\x00",
    "line\nfeed",
    "A",
    "a",
    "É",
    "é",
    "e\u0301",
    "CON",
    "nul.txt",
    "lock",
    "blobs",
    "runs",
    "x" * 300,
    "x" * 301,
    "\udc80",
    "🚀",
    " ",
    "a ",
    "%2e%2e",
    "'; DROP TABLE runs; --",
)
"""Run ids with a special meaning to file systems, SQL or URLs; each must be a separate run."""


def results(*outputs: Any, first: int = 1) -> list[StepResult]:
    """Return one result per output, named `step-1`, `step-2` ….

    Args:
        *outputs: the outputs of the steps.
        first: the number of the first step.
    """
    return [StepResult(f"step-{first + index}", output=output) for index, output in enumerate(outputs)]


def checkpoint(
    sequence: int = 1, steps: Sequence[StepResult] = (), *, checkpoint_id: str | None = None, **fields: Any
) -> CheckpointData:
    """Return a checkpoint with the given fields and simple defaults.

    Args:
        sequence: its place in the run.
        steps: the whole history.
        checkpoint_id: its id; by default `c` and the sequence.
        **fields: further fields of `CheckpointData`.
    """
    fields = {"workflow_name": "etl", "inputs_hash": "sha256:v1:00", "saved_at": NOON, **fields}
    return CheckpointData(checkpoint_id or f"c{sequence}", step_results=steps, sequence=sequence, **fields)


def same(left: Any, right: Any) -> bool:
    """Return whether two values are equal in value and type at every level; NaN equals NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return len(left) == len(right) and all(map(same, left.items(), right.items()))
    if isinstance(left, float):
        return repr(left) == repr(right)
    if isinstance(left, datetime | time):
        return left.isoformat() == right.isoformat() and repr(left) == repr(right)
    return bool(left == right)


CLAIM: Mapping[str, Any] = {"evidence_type": "file_sha256", "description": "the report", "expected": {}}
"""A recorded claim."""


def claimed(outcome: str | None, name: str = "step", *claims: str, **fields: Any) -> StepResult:
    """Return a result with claims.

    Args:
        outcome: the outcome of all claims together; None if they were not checked.
        name: the step's name.
        *claims: the status of each claim; by default, one claim with the outcome as its status.
        **fields: further fields of the result.
    """
    answers = claims or ((outcome,) if outcome else ())
    evidence: dict[str, Any] = {
        "pack": {"evidence": [CLAIM] * max(1, len(answers)), "require_all": True},
        "verdicts": [{"status": answer, "verified_at": "2026-01-01T12:00:00Z"} for answer in answers],
    }
    if outcome is not None:
        evidence["outcome"] = outcome
    return StepResult(name, evidence=evidence, **fields)


def history_of(lease: Lease) -> list[StepResult]:
    """Return the results of the newest checkpoint of a claimed run that has one."""
    assert lease.latest is not None
    return list(lease.latest.step_results)


class StoreUnderTest:
    """Gives the tests their store; a subclass of the contract overrides `make_store`, `reopen` and `damage`."""

    is_flowckpt_contract: ClassVar[bool] = True
    """The pytest plugin runs its async tests."""

    def make_store(self) -> CheckpointStore:
        """Return a new, empty store. Called once per test."""
        raise NotImplementedError

    def reopen(self, store: Any) -> Any:
        """Return another instance on the same data, as in a second process; the first one stays open.

        Args:
            store: the store returned by `make_store`.
        """
        return store

    def damage(self, sequence: int) -> None:
        """Change a byte in the stored record of a checkpoint of the run `RUN`; by default, tests that need it are skipped.

        Args:
            sequence: the checkpoint.
        """
        pytest.skip(f"{type(self).__name__} has no `damage`")

    @pytest.fixture
    def store(self) -> StoreBase:
        """The store under test, empty."""
        return adapt(self.make_store())

    def another(self, store: StoreBase) -> StoreBase:
        """Return another instance on the same data, adapted like the store."""
        return adapt(self.reopen(store.store if isinstance(store, AdaptedStore) else store))

    def needs(self, store: StoreBase, *abilities: Ability) -> None:
        """Skip the test if the store lacks one of the abilities."""
        for ability in abilities:
            if not store.has(ability):
                pytest.skip(f"{store.kind} lacks {ability}")

    async def latest(self, store: StoreBase, run: str = RUN) -> CheckpointData:
        """Return the newest checkpoint of a run that has one."""
        latest = await store.load_latest(run)
        assert latest is not None
        return latest

    async def described(self, store: StoreBase, run: str = RUN) -> RunInfo:
        """Return the store's description of an existing run."""
        info = await store.describe_run(run)
        assert info is not None
        return info

    async def save_each(self, store: StoreBase, steps: Sequence[StepResult]) -> None:
        """Save the checkpoints 1, 2, 3 … of the run `RUN`, one after each step."""
        for sequence in range(1, len(steps) + 1):
            await store.save(RUN, checkpoint(sequence, steps[:sequence]))

    async def resume(self, store: StoreBase, run: str = RUN) -> Lease:
        """Release the run, and acquire it again."""
        await store.release(run)
        return await store.acquire(run)

    async def list_ids(self, store: StoreBase, run: str = RUN) -> list[tuple[int, str]]:
        """Return sequence and id of each checkpoint, as another instance of the store lists them."""
        return [(ref.sequence, ref.checkpoint_id) for ref in await self.another(store).list_checkpoints(run)]
