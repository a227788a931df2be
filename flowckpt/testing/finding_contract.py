"""The conformance tests of finding runs; part of `flowckpt.testing.contract.CheckpointStoreContract`."""

# ruff: noqa: D102 - the name of a test is the sentence that it proves

from __future__ import annotations

from datetime import timedelta
from typing import Any

from flowckpt.checkpoint import Reason, Status
from flowckpt.checkpoint.run_filter import RunFilter
from flowckpt.stores.base import CheckpointStore, ListsRuns, OwnsRuns
from flowckpt.stores.finding import FindsRuns
from flowckpt.testing.store_under_test import NOON, StoreUnderTest, checkpoint, results

_HOSTILE_TAGS = ("", "a=b", "line\nfeed", "a\0b", "é", "e\u0301", '"quoted"', "'; --", "%", "x" * 3_000, "🚀")
_REASONS = (Reason.COMPLETED, Reason.FAILED, Reason.SUSPENDED, Reason.STEP, Reason.CANCELLED)


class FindingContract(StoreUnderTest):
    """What a store promises that has the ability `FindsRuns`: it finds what reading all runs would find."""

    async def test_runs_are_found_by_status_workflow_and_tags_as_if_all_were_read(self, store: CheckpointStore) -> None:
        self.able(store, FindsRuns)
        listing, owning = self.able(store, ListsRuns), self.able(store, OwnsRuns)
        for number in range(20):
            run = f"run-{number:02d}"
            tags = {"team": ("data", "web")[number % 2], **({"urgent": ""} if number % 7 == 0 else {})}
            lease = await owning.acquire(run)
            await store.save(
                run,
                checkpoint(
                    1,
                    results(1),
                    reason=_REASONS[number % 5],
                    attempt=lease.attempt,
                    workflow_name=("etl", "train", "ETL")[number % 3],
                    saved_at=NOON + timedelta(seconds=number),
                    metadata={"tags": tags} if number % 4 else {},
                ),
            )
            if number != 3:  # the only one that is live
                await owning.release(run)
        everything = list(await listing.list_runs())
        finding = self.able(self.reopen(store), FindsRuns)
        wanted: list[dict[str, Any]] = [
            {},
            *({"statuses": [status]} for status in Status),
            {"statuses": [*Status]},
            {"statuses": []},
            {"statuses": [Status.CRASHED, Status.FAILED]},
            *({"workflow": name} for name in ("etl", "ETL", "no such", "")),
            {"workflow": "train", "statuses": [Status.FAILED, Status.CANCELLED]},
            *(
                {"tags": [tag]}
                for tag in (("team", "data"), ("team", None), ("urgent", ""), ("TEAM", None), ("team", ""))
            ),
            {"tags": [("urgent", None), ("team", "web")], "workflow": "etl"},
            {"tags": [("team", "data")], "statuses": [Status.CRASHED, Status.SUSPENDED]},
        ]
        for each in wanted:
            for limit in (None, 1, 3):
                found = await finding.find_runs(RunFilter(**each, limit=limit))
                expected = RunFilter(**each, limit=limit).of(everything)
                assert [info.workflow_id for info in found] == [info.workflow_id for info in expected], (each, limit)

    async def test_a_run_is_found_by_a_tag_of_any_text(self, store: CheckpointStore) -> None:
        finding = self.able(store, FindsRuns)
        tags = {text: text[::-1] for text in _HOSTILE_TAGS}
        await store.save("one", checkpoint(1, results(1), metadata={"tags": tags}))
        await store.save("two", checkpoint(1, results(1), metadata={"tags": {"a": "b"}}))
        for name, value in tags.items():
            for wanted in ((name, value), (name, None)):
                found = await finding.find_runs(RunFilter(tags=[wanted]))
                assert [info.workflow_id for info in found] == ["one"], wanted
            assert not await finding.find_runs(RunFilter(tags=[(name, value + "?")]))
        assert len(await finding.find_runs(RunFilter(tags=[*tags.items()]))) == 1
