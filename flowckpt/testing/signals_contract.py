"""The conformance tests of messages for runs; part of `flowckpt.testing.contract.CheckpointStoreContract`."""

# ruff: noqa: D102 - the name of a test is the sentence that it proves

from __future__ import annotations

from datetime import timedelta
from typing import Any

import attrs
import pytest

from flowckpt.checkpoint import Reason, Signal, Status, Wait, WaitKind
from flowckpt.errors import CheckpointNotFoundError, EncodingError
from flowckpt.stores.base import CheckpointStore, DeliversSignals, ListsRuns, OwnsRuns
from flowckpt.testing.store_under_test import NOON, RUN, StoreUnderTest, checkpoint, results

HOSTILE_TEXTS = (
    "../x",
    ".",
    "",
    "a/b",
    "a\x00b",
    "line\nfeed",
    "A",
    "a",
    "É",
    "e\u0301",
    "x" * 301,
    "\udc80",
    "🚀",
    "'; --",
)
"""Ids and names that are also something else somewhere."""


def signal(signal_id: str, data: Any = None) -> Signal:
    """Return a message with the given parts and plain ones elsewhere.

    Args:
        signal_id: its id.
        data: what it carries.
    """
    return Signal(signal_id, "go", NOON, data, "ann")


class SignalsContract(StoreUnderTest):
    """What a store promises that has the ability `DeliversSignals`."""

    async def test_a_message_is_kept_for_a_run_that_another_process_owns(self, store: CheckpointStore) -> None:
        owning, sender = self.able(store, OwnsRuns), self.able(self.reopen(store), DeliversSignals)
        await owning.acquire(RUN)
        await store.save(RUN, checkpoint(1, results("a")))
        assert list(await sender.signals(RUN)) == []
        assert await sender.send_signal(RUN, signal("one", {"rows": [1, 2]}))
        await store.save(RUN, checkpoint(2, results("a", "b")))
        assert list(await self.able(store, DeliversSignals).signals(RUN)) == [signal("one", {"rows": [1, 2]})]
        latest = await store.load_latest(RUN)
        assert latest is not None
        assert (latest.sequence, latest.attempt) == (2, 1)

    async def test_messages_come_in_the_order_in_which_they_were_sent(self, store: CheckpointStore) -> None:
        door = self.able(store, DeliversSignals)
        await store.save(RUN, checkpoint(1, []))
        times = [NOON + timedelta(seconds=number) for number in (3, 1, 2, 1)]
        for index, moment in enumerate(times):
            await door.send_signal(RUN, attrs.evolve(signal(f"{index}"), sent_at=moment))
        found = [each.signal_id for each in await self.able(self.reopen(store), DeliversSignals).signals(RUN)]
        assert found == ["1", "3", "2", "0"]

    async def test_a_message_sent_twice_is_there_once_as_it_was_first(self, store: CheckpointStore) -> None:
        door = self.able(store, DeliversSignals)
        await store.save(RUN, checkpoint(1, []))
        assert await door.send_signal(RUN, signal("01ARZ3NDEKTSV4RRFFQ69G5FAV", 1)) is True
        assert await door.send_signal(RUN, signal("01ARZ3NDEKTSV4RRFFQ69G5FAV", 2)) is False
        assert await door.send_signal(RUN, signal("01arz3ndektsv4rrffq69g5fav", 3)) is True  # another id
        assert [each.data for each in await door.signals(RUN)] in ([1, 3], [3, 1])

    async def test_a_message_for_no_run_is_refused_and_leaves_nothing(self, store: CheckpointStore) -> None:
        door = self.able(store, DeliversSignals)
        with pytest.raises(CheckpointNotFoundError):
            await door.send_signal(RUN, signal("one"))
        assert list(await door.signals(RUN)) == []
        owning = self.able(store, OwnsRuns)
        await owning.acquire(RUN)
        with pytest.raises(CheckpointNotFoundError):  # claimed, but nothing was ever saved
            await door.send_signal(RUN, signal("one"))
        await store.save(RUN, checkpoint(1, []))
        assert list(await door.signals(RUN)) == []

    async def test_removed_messages_are_gone_and_others_stay(self, store: CheckpointStore) -> None:
        door = self.able(store, DeliversSignals)
        await store.save(RUN, checkpoint(1, []))
        for name in ("one", "two"):
            await door.send_signal(RUN, signal(name))
        await door.remove_signals(RUN, ["one", "no such"])
        await door.remove_signals("no-such-run", ["two"])
        assert [each.signal_id for each in await self.able(self.reopen(store), DeliversSignals).signals(RUN)] == ["two"]

    async def test_a_cleared_run_takes_its_messages_with_it(self, store: CheckpointStore) -> None:
        door = self.able(store, DeliversSignals)
        for run in (RUN, "other"):
            await store.save(run, checkpoint(1, []))
            await door.send_signal(run, signal("one"))
        await store.clear(RUN)
        with pytest.raises(CheckpointNotFoundError):
            await door.send_signal(RUN, signal("two"))
        await store.save(RUN, checkpoint(1, []))
        assert list(await door.signals(RUN)) == []
        assert [each.signal_id for each in await door.signals("other")] == ["one"]

    async def test_hostile_names_and_texts_in_messages_come_back_or_are_refused(self, store: CheckpointStore) -> None:
        door = self.able(store, DeliversSignals)
        await store.save(RUN, checkpoint(1, []))
        for text in HOSTILE_TEXTS:
            sent = attrs.evolve(signal(text), name=text, by=text, path=text, request=text)
            if not text.isascii() and text.encode("utf-8", "replace").decode() != text:
                with pytest.raises(EncodingError):  # it is no Unicode
                    await door.send_signal(RUN, sent)
                continue
            assert await door.send_signal(RUN, sent)
            assert list(await door.signals(RUN)) == [sent]
            await door.remove_signals(RUN, [text])
        assert list(await door.signals(RUN)) == []
        with pytest.raises(EncodingError):
            await door.send_signal(RUN, signal("one", "\udc80"))
        assert list(await door.signals(RUN)) == []

    async def test_what_a_run_waits_for_is_told_without_loading_it(self, store: CheckpointStore) -> None:
        listing = self.able(store, ListsRuns)
        wait = Wait("nap", WaitKind.SLEEP, "", NOON, NOON + timedelta(hours=1))
        waiting = {"target": {}, "tags": {}, "waits": {"nap": wait.to_document()}}
        done = results("a", "b")
        for sequence in range(1, 8):
            data = checkpoint(sequence, done[: sequence // 4])
            if sequence >= 4:
                data = attrs.evolve(data, reason=Reason.SUSPENDED, status=Status.SUSPENDED, metadata=waiting)
            await store.save(RUN, data)
        info = await self.able(self.reopen(store), ListsRuns).describe_run(RUN)
        assert info is not None
        assert (info.waits, info.due_at) == ((wait,), NOON + timedelta(hours=1))
        await store.save(RUN, attrs.evolve(checkpoint(8, done), reason=Reason.STEP, status=Status.RUNNING))
        info = await listing.describe_run(RUN)
        assert info is not None
        assert (info.waits, info.due_at) == ((), None)
