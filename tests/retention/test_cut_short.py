"""A compaction or a clear of files that was cut short: no attempt shows again what was removed, nor loses what was not."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from flowckpt.core.system.filesystem import Directory, PosixFileSystem
from flowckpt.errors import FencedError
from flowckpt.maintenance import copy_run
from flowckpt.stores import FileCheckpointStore, MemoryCheckpointStore
from flowckpt.stores.file.claim import write_tombstone
from flowckpt.stores.file.layout import segment_name, segment_numbers
from flowckpt.testing.contract import checkpoint, results


class Killed(BaseException):
    """The process died here."""


class Interrupted(PosixFileSystem):
    """Does something else in the place of the removal of the first segment, or behind the link to a pack."""

    def __init__(self, *, in_place_of_unlink=None, behind_link=None):
        self.in_place_of_unlink = in_place_of_unlink
        self.behind_link = behind_link

    def unlink(self, directory, name):
        if name == segment_name(1) and self.in_place_of_unlink is not None:
            self.in_place_of_unlink()
        super().unlink(directory, name)

    def link(self, directory, source, target):
        super().link(directory, source, target)
        if self.behind_link is not None and b'"kind":"pack"' in self.content(directory, target):
            self.behind_link()

    def content(self, directory, name):
        file = self.open_read(directory, name)
        try:
            return self.read(file, 4096, 0)
        finally:
            self.close(file)


def die():
    raise Killed


async def removed_by_a_later_attempt(store, *, is_going_back):
    """Three attempts: one saves three checkpoints, one removes the second of them, one continues, or back behind all."""
    steps = results("a", "b", "c")
    for number in (1, 2, 3):
        await store.save("run", checkpoint(number, steps[:number]))
    await store.release("run")
    assert await store.delete_checkpoint("run", "c2")
    await going_on(store, results("anew") if is_going_back else steps)


async def going_on(store, steps, *, steal=False):
    lease = await store.acquire("run", take_over=steal)
    await store.save("run", checkpoint(lease.last_sequence + 1, steps, attempt=lease.attempt))
    await store.release("run")
    return lease.attempt


async def saved_by_each(store):
    """The ids of what each attempt left, in each way in which it can be asked."""
    found = {}
    for number in await store.attempts("run"):
        listed = [each.checkpoint_id for each in await store.list_attempt("run", number)]
        latest = await store.load_attempt("run", number)
        assert [each.checkpoint_id for each in await store.read_attempt("run", number)] == listed
        assert (latest and latest.checkpoint_id) == (listed[-1] if listed else None)
        if listed:
            found[number] = listed
    return found


async def copied(store):
    copy = MemoryCheckpointStore()
    await copy_run(store, copy, "run")
    assert [each.checkpoint_id for each in await copy.list_checkpoints("run")] == [
        each.checkpoint_id for each in await store.list_checkpoints("run")
    ]
    return await saved_by_each(copy)


@pytest.mark.parametrize("is_going_back", [False, True])
async def test_what_a_later_attempt_removed_stays_removed_behind_a_killed_compaction(tmp_path, is_going_back):
    """The pack is there, and so are the segments that it stands in for, which do not say what was removed since."""
    await removed_by_a_later_attempt(FileCheckpointStore(tmp_path), is_going_back=is_going_back)
    dying = FileCheckpointStore(tmp_path, filesystem=Interrupted(in_place_of_unlink=die))
    with pytest.raises(Killed):
        await dying.compact("run", is_forced=True)
    dying.close()
    store = FileCheckpointStore(tmp_path)
    assert (tmp_path / "runs" / "run" / segment_name(1)).exists()
    left = {1: ["c1", "c3"], 3: ["c4"]}
    assert await saved_by_each(store) == await copied(store) == left
    number = await going_on(store, results("z"), steal=True)
    left = {**left, number: ["c5"]}
    assert await saved_by_each(store) == await copied(store) == left
    await store.compact("run", is_forced=True)
    assert len(segment_numbers([path.name for path in (tmp_path / "runs" / "run").iterdir()])) == 1
    assert await saved_by_each(store) == await copied(store) == left


async def test_it_stays_removed_where_a_thief_goes_on_from_the_pack_and_the_compaction_gives_up(tmp_path):
    await removed_by_a_later_attempt(FileCheckpointStore(tmp_path), is_going_back=False)
    thief = FileCheckpointStore(tmp_path)

    def steal():
        lease = thief.runs.acquire("run", take_over=True)
        thief.runs.save("run", checkpoint(5, lease.latest.step_results, attempt=lease.attempt))

    robbed = FileCheckpointStore(tmp_path, filesystem=Interrupted(behind_link=steal))
    with pytest.raises(FencedError):
        await robbed.compact("run", is_forced=True)
    store = FileCheckpointStore(tmp_path)
    assert (tmp_path / "runs" / "run" / segment_name(1)).exists()
    left = {1: ["c1", "c3"], 3: ["c4"], 6: ["c5"]}
    assert await saved_by_each(store) == await copied(store) == left


async def test_no_attempt_shows_anything_of_a_run_whose_clear_was_cut_short(tmp_path):
    store = FileCheckpointStore(tmp_path, filesystem=Interrupted(in_place_of_unlink=die))
    await store.save("run", checkpoint(1, results("a")))
    await store.release("run")
    with pytest.raises(Killed):
        await store.clear("run")
    again = FileCheckpointStore(tmp_path)
    assert (tmp_path / "runs" / "run" / segment_name(1)).exists()
    assert await again.attempts("run") == []
    assert await again.list_attempt("run", 1) == []
    assert await again.read_attempt("run", 1) == []
    assert await again.load_attempt("run", 1) is None


async def test_what_was_gone_back_behind_outlives_a_pack_whose_newest_attempt_is_empty(tmp_path):
    """A process that continues from there has seen the pack, though no record of it is part of the run."""
    store = FileCheckpointStore(tmp_path)
    await store.save("run", checkpoint(1, results("x")))
    await store.release("run")
    await going_on(store, [])
    assert await store.delete_checkpoint("run", "c2")
    await store.compact("run", is_forced=True)
    assert await saved_by_each(store) == {1: ["c1"]}
    before = await store.attempts("run")
    number = await going_on(store, results("z"))
    assert await store.attempts("run") == [*before, number]
    assert await saved_by_each(store) == {1: ["c1"], number: ["c3"]}
    await store.compact("run", is_forced=True)
    assert await saved_by_each(store) == {1: ["c1"], number: ["c3"]}


async def test_a_thief_whose_segment_a_compaction_removed_is_told_so_and_not_that_the_run_was_cleared(tmp_path):
    robbed, thief, other = (FileCheckpointStore(tmp_path) for _ in range(3))
    await robbed.save("run", checkpoint(1, results("x")))
    assert thief.runs.acquire("run", take_over=True).attempt == 2
    await robbed.release("run")
    assert (await other.compact("run", is_forced=True)).is_changed
    with pytest.raises(FencedError, match="attempt 4 has taken over"):
        await thief.save("run", checkpoint(2, results("x", "y"), attempt=2))
    thief.close()
    assert [ref.checkpoint_id for ref in await other.list_checkpoints("run")] == ["c1"]


async def test_a_writer_whose_run_is_cleared_by_halves_is_told_that_it_was_cleared(tmp_path):
    owner = FileCheckpointStore(tmp_path)
    await owner.save("run", checkpoint(1, results("x")))
    directory = Directory.at(PosixFileSystem(), str(tmp_path / "runs" / "run"))
    tombstone = write_tombstone(directory, "run", datetime.now(UTC))
    (tmp_path / "runs" / "run" / segment_name(1)).unlink()
    with pytest.raises(FencedError, match="the run was cleared"):
        await owner.save("run", checkpoint(2, results("x", "y")))
    assert (tmp_path / "runs" / "run" / segment_name(tombstone)).exists()
    owner.close()
