"""The crash checks can fail: a store that leaves out one part of the protocol is caught by them."""

from __future__ import annotations

import contextlib
import errno

import pytest

import flowckpt.stores.file.claim
import flowckpt.stores.file.runs
import flowckpt.stores.log.image
from flowckpt.errors import CheckpointStorageError, FencedError, RunLockedError
from flowckpt.stores.file.directory import read_image, read_newest_owner
from flowckpt.stores.file.layout import LOCK, parse_mark, segment_name, segment_numbers
from flowckpt.stores.file.run_writer import FileRunWriter, SegmentWriter
from flowckpt.stores.file.runs import FileRuns
from flowckpt.stores.log.image import RunImage
from flowckpt.stores.log.segment import chain_line
from tests.crash.simulation import File, SimulatedFileSystem
from tests.crash.workload import RUN, BrokenPromise, Entry, Tally, Workload, done, patched

pytestmark = pytest.mark.timeout(1_800)  # as long as the crash states: a busy machine needs more than five minutes


def in_turn(life):
    """One gives the run up that it stole and never wrote to, while a third continues; then the first wakes up."""
    life.acquire(take_over=False)
    life.save(life.writers[0])
    life.acquire(take_over=True)
    life.acquire(take_over=True)
    first, between, last = life.writers
    life.save(last)
    life.release(between)
    life.save(first)
    life.examine()
    life.save(last)
    life.examine()


def saving_into_a_claim(life):
    """An owner saves at each point of another one's claim, which then saves itself."""
    life.acquire(take_over=False)
    for count in range(12):
        owner = life.writers[-1]
        if not owner.is_refused:
            life.save(owner)
        points = iter(range(count, -1, -1))

        def at_point(name, role, owner=owner, points=points):
            if next(points, None) == 0:
                life.save(owner)

        life.disk.before_change = at_point
        life.acquire(take_over=True)
        life.attach()
        life.save(life.writers[-1])
        life.examine()


def claiming_at_once(life):
    """Another one claims, and saves, at each point of a claim."""
    for count in range(6):
        points = iter(range(count, -1, -1))

        def at_point(name, role, points=points):
            life.examine()
            if next(points, None) == 0 and life.acquire(take_over=True):
                life.save(life.writers[-1])

        life.disk.before_change = at_point
        life.acquire(take_over=True)
        life.attach()
        life.examine()
        life.save(life.writers[-1])


def claiming_after_half_a_clear(life):
    """A clear stops at some call, and so does the claim after it."""
    for count in range(3, 14):
        life.acquire(take_over=False)
        life.save(life.writers[-1])
        life.release(life.writers[-1])
        life.acquire(take_over=False)
        life.save(life.writers[-1])
        life.fail_at(count)
        life.clear(life.writers[-1])
        life.fail_at(None)
        life.examine()
        if life.acquire(take_over=False):
            life.clear(life.writers[-1])


def saving_after_failures(life):
    """Each call of a save fails once; the writer tries again, and a next one takes over."""
    for count in range(1, 8):
        life.acquire(take_over=True)
        life.writers[-1].is_fresh = False  # so it continues from where the run is
        life.save(life.writers[-1])
        life.fail_at(count)
        life.save(life.writers[-1])
        life.fail_at(None)
        life.examine()
        life.save(life.writers[-1])
        life.examine()
        life.kill(life.writers[-1])


def claiming_a_number_given_up(life):
    """One that was stopped before its link takes a number that was given up, below one that is in use by now."""
    life.acquire(take_over=False)
    life.save(life.writers[0])
    between = []

    def at_point(name, role):
        if name == "link" and not between:
            between.append(None)
            life.acquire(take_over=True)
            given_up = life.writers[-1]
            life.acquire(take_over=True)
            life.save(life.writers[-1])
            life.release(given_up)

    life.disk.before_change = at_point
    life.acquire(take_over=True)
    life.attach()
    late, last = life.writers[0], life.writers[-1]
    assert late.attempt < last.attempt
    life.save(late)
    life.examine()
    life.save(last)
    life.examine()


def claiming_while_the_owner_looks(life):
    """A claim was given up, so the owner looks around; at each point of that another one claims, and saves."""
    for count in range(4):
        life.acquire(take_over=True)
        owner = life.writers[-1]
        life.save(owner)
        if life.acquire(take_over=True):
            life.release(life.writers[-1])
        points = iter(range(count, -1, -1))

        def at_point(name, role, points=points):
            if name in ("set_writable", "unlink", "write") and next(points, None) == 0 and life.acquire(take_over=True):
                life.save(life.writers[-1])

        life.disk.before_change = at_point
        life.save(owner)
        life.attach()
        life.examine()
        marks = [parse_mark(name) for name in life.segments()[0].names]
        if life.writers[-1] is owner and owner.attempt in marks:
            raise BrokenPromise("a mark that was found to mean nothing stays, so each save looks")
        life.save(owner)
        life.examine()


def changing_modes_from_outside(life):
    """After a takeover somebody makes all files writable; then the one that was stolen from wakes up."""
    life.acquire(take_over=False)
    life.save(life.writers[0])
    life.acquire(take_over=True)
    owner, thief = life.writers
    life.save(thief)
    for file in life.segments()[1].values():
        file.is_writable = True
    life.save(owner)
    life.examine()
    life.save(thief)
    life.examine()


def linking_from_outside(life):
    """A backup gives each file one more name, before a takeover or after it."""
    for is_before in (True, False):
        life.acquire(take_over=True)
        owner = life.writers[-1]
        life.save(owner)
        files = list(life.segments()[1].values())
        for file in files if is_before else ():
            file.links += 1
        life.save(owner)
        life.acquire(take_over=True)
        for file in () if is_before else files:
            file.links += 1
        life.save(owner)
        life.examine()
        life.save(life.writers[-1])
        life.examine()


def saving_while_a_clear_is_finished(life):
    """A clear stopped behind its tombstone, so there is no run; the former owner saves while the rest is removed."""
    for count in range(16):
        life.acquire(take_over=False)
        life.save(life.writers[-1])
        life.acquire(take_over=True)
        victim, owner = life.writers
        life.save(owner)
        life.kill(victim)  # so its lock can be had, which the owner has not taken yet
        first = life.opened(life.disk)
        first.attempt = 10**6
        life.disk.fail = lambda name, role: errno.EIO if (name, role) == ("unlink", segment_name(1)) else 0
        life.kept = set()  # from here on they may be gone
        with life.in_flight(first, {()}), contextlib.suppress(CheckpointStorageError):
            done(first.store.clear(RUN))
        life.disk.fail = lambda name, role: 0
        life.kill(first)
        life.forget()
        life.examine()
        late = Entry(owner.last_sequence + 1, "late", (*owner.outputs, "late")).data(owner.attempt)
        points = iter(range(count, -1, -1))

        def at_point(name, role, owner=owner, late=late, points=points):
            if next(points, None) == 0:
                with life.as_process(owner):
                    try:
                        done(owner.store.save(RUN, late))
                    except (FencedError, CheckpointStorageError):
                        return
                raise BrokenPromise(f"a save into a cleared run was acknowledged, before {name} of {role}")

        life.disk.before_change = at_point
        life.clear(life.opened(life.disk))
        life.attach()
        life.examine()


def waking_up_in_a_new_run(life):
    """A thief sleeps while the run is cleared and started again in the same directory; then it gives its claim up."""
    life.acquire(take_over=False)
    life.save(life.writers[0])
    life.acquire(take_over=True)
    victim, thief = life.writers
    life.kill(victim)
    life.writers.remove(thief)

    def at_point(name, role):
        if (name, role) == ("remove_directory", RUN):
            life.disk.before_change = lambda name, role: None
            life.forget()
            life.acquire(take_over=False)
            life.save(life.writers[-1])
            life.kill(life.writers[-1])
            life.acquire(take_over=False)
            life.save(life.writers[-1])
            beginners.extend([life.possible, life.begun, life.acknowledged_sequence, life.writers.pop()])

    beginners = []
    life.disk.before_change = at_point
    life.clear(life.opened(life.disk))
    life.attach()
    life.possible, life.begun, life.acknowledged_sequence, owner = beginners
    owner.epoch = life.epoch
    assert owner.attempt == thief.attempt, "the thief's number is another one's now"
    life.examine()
    with life.as_process(thief):
        done(thief.store.release(RUN))
    life.examine()
    life.save(owner)
    life.examine()


def stopping_claims_that_were_marked(life):
    """A claim that another one marked is given up, which fails somewhere; the next claim tidies up."""
    for count in range(1, 4):
        life.acquire(take_over=True)
        life.save(life.writers[-1])
        life.acquire(take_over=True)
        life.acquire(take_over=True)
        between, last = life.writers[-2:]
        life.release(last)
        life.fail_at(count)
        life.release(between)
        life.fail_at(None)
        life.examine()


def removing_into_a_claim(life):
    """An owner removes checkpoints at each point of another one's claim, which then saves, and may go back behind them."""
    for count in range(9):
        life.acquire(take_over=True)
        owner = life.writers[-1]
        for _ in range(2):
            life.save(owner)
        points = iter(range(count, -1, -1))

        def at_point(name, role, owner=owner, points=points):
            if next(points, None) == 0:
                life.delete(owner)

        life.disk.before_change = at_point
        life.acquire(take_over=True)
        life.attach()
        life.examine()
        life.save(life.writers[-1])
        life.examine()
        life.clear(life.writers[-1])


def claiming_into_a_removal(life):
    """Another one claims at each point of a removal, and saves at once, or later: the owner is not told that there was none."""
    for count in range(8):
        life.acquire(take_over=True)
        owner = life.writers[-1]
        for _ in range(2):
            life.save(owner)
        points = iter(range(count // 2, -1, -1))

        def at_point(name, role, points=points, is_later=count % 2):
            if next(points, None) == 0 and life.acquire(take_over=True) and not is_later:
                life.save(life.writers[-1])

        life.disk.before_change = at_point
        life.delete(owner)
        life.attach()
        life.examine()
        life.delete(life.writers[-1])
        life.save(life.writers[-1])
        life.examine()
        life.clear(life.writers[-1])


def going_back_behind_a_removal(life):
    """An owner removes a checkpoint and dies; the next one goes back to where the removal was not said yet."""
    for _ in range(4):
        life.acquire(take_over=True)
        for _ in range(4):
            life.save(life.writers[-1])
        life.delete(life.writers[-1])
        life.kill(life.writers[-1])
        life.acquire(take_over=False)
        life.writers[-1].outputs = life.writers[-1].outputs[:-1]
        life.save(life.writers[-1])
        life.examine()
        life.clear(life.writers[-1])


SCENES = [
    in_turn,
    claiming_at_once,
    saving_into_a_claim,
    claiming_after_half_a_clear,
    saving_after_failures,
    claiming_a_number_given_up,
    claiming_while_the_owner_looks,
    changing_modes_from_outside,
    linking_from_outside,
    saving_while_a_clear_is_finished,
    waking_up_in_a_new_run,
    stopping_claims_that_were_marked,
    removing_into_a_claim,
    claiming_into_a_removal,
    going_back_behind_a_removal,
]


def caught(monkeypatch, mount_kind=None, lives=60, first=in_turn, seeds=2, states=2, share=1.0, protections=()):
    """Play the scenes, then live at random, until the checks object; return what they said, or None."""
    processes = patched(monkeypatch)
    tally = Tally()
    for scene in [first, *(scene for scene in SCENES if scene is not first)]:
        for seed in range(3 * seeds if scene is first else seeds):  # what a call stores of a failed one is chance
            options = {"states": states, "share": share, "protections": protections}
            life = Workload(seed, processes, tally, mount_kind=mount_kind, **options)
            try:
                scene(life)
            except BrokenPromise as broken:
                return f"{scene.__name__}: {broken}"
    for seed in range(lives):
        try:
            Workload(seed, processes, tally, mount_kind=mount_kind, states=states, protections=protections).live()
        except BrokenPromise as broken:
            return f"life {seed}: {broken}"
    return None


def leaving_out(call, role):
    """File systems whose sync of one kind of thing does nothing."""

    class Lazy(SimulatedFileSystem):
        def synced(self, name, file):
            inode = self.inode(file)
            if name == call and inode.role == role:
                self.called(name, inode.role)
                return
            super().synced(name, file)

    return Lazy


@pytest.mark.parametrize(
    ("call", "role"),
    [
        pytest.param("sync_data", "segment", id="the segment's data"),
        pytest.param("sync", "segment", id="the segment's header"),
        pytest.param("sync", "run", id="the run's directory"),
        pytest.param("sync", "runs", id="the directory of the runs"),
        pytest.param("sync", "root", id="the store's directory"),
        pytest.param("sync_data", "blob", id="a blob's data"),
        pytest.param("sync", "blobs", id="the directory of the blobs"),
    ],
)
def test_a_store_that_leaves_out_one_sync_is_caught(monkeypatch, call, role):
    """Each sync is needed: without it some crash state loses or breaks something."""
    assert caught(monkeypatch, leaving_out(call, role)), f"nobody missed the {call} of {role}"


def newest_or_none(writer):
    if not writer._filesystem.status(writer._file).links:
        return None
    return max(segment_numbers(writer._directory.names()))


def without_a_fence(monkeypatch):
    monkeypatch.setattr(SegmentWriter, "_find_newest", lambda self: self.number)


def fence_before_the_sync(monkeypatch):
    """Look for a successor, then write: one may come in between."""
    original = SegmentWriter.append

    def append(self, body):
        self.check_usable()
        newest = newest_or_none(self)
        if newest != self.number:
            self._fence = FencedError(self._workflow_id, attempt=self.number, newest_attempt=newest)
            raise self._fence
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SegmentWriter, "_find_newest", lambda self: self.number)
            original(self, body)

    monkeypatch.setattr(SegmentWriter, "append", append)


def fence_by_the_next_number_alone(monkeypatch):
    """Look for segment N + 1 only, which its owner may have given up while a third one continued."""

    def newest(self):
        if not self._filesystem.status(self._file).links:
            return None
        return self.number + self._directory.exists(segment_name(self.number + 1))

    monkeypatch.setattr(SegmentWriter, "_find_newest", newest)


def claim_without_a_mark(monkeypatch):
    """Claim a segment without telling those that write to the ones below."""
    monkeypatch.setattr(flowckpt.stores.file.claim, "mark_segments", lambda directory, below: None)


def mark_after_the_reading(monkeypatch):
    """Claim, read, and then tell those that write: what they acknowledged meanwhile is lost."""
    mark, read = flowckpt.stores.file.claim.mark_segments, flowckpt.stores.file.claim.read_image

    def read_first(directory, workflow_id, fetch, below, **options):
        image = read(directory, workflow_id, fetch, below, **options)
        mark(directory, below)
        return image

    claim_without_a_mark(monkeypatch)
    monkeypatch.setattr(flowckpt.stores.file.claim, "read_image", read_first)


def no_look_behind_the_first_line(monkeypatch):
    """Rest upon the mark alone, which nobody sets whose claim came before ours under a higher number."""
    original = SegmentWriter.__init__

    def init(self, *given, **options):
        original(self, *given, **options)
        self._next_check = float("inf")

    monkeypatch.setattr(SegmentWriter, "__init__", init)


def take_the_mark_away_after_the_look(monkeypatch):
    """Look, then take the mark away: it may be another one's by then."""

    def newest(self):
        if self._next_check > 0 and self._filesystem.is_untouched(self._file):
            return self.number
        newest = newest_or_none(self)
        self._remove_mark()
        self._next_check = 1
        return newest

    monkeypatch.setattr(SegmentWriter, "_find_newest", newest)


def never_take_the_mark_away(monkeypatch):
    """Look, find nothing, and look again at each save."""
    monkeypatch.setattr(SegmentWriter, "_remove_mark", lambda self: None)


def mark_by_the_mode_alone(monkeypatch):
    """Rest upon the mode, which `chmod -R` gives back."""

    class Linkless(SimulatedFileSystem):
        def link(self, parent, source, target):
            if parse_mark(target) is None:
                super().link(parent, source, target)

    return Linkless


def mark_by_the_name_alone(monkeypatch):
    """Rest upon the count of names, which is one again while a clear removes both."""

    class Modeless(SimulatedFileSystem):
        def set_writable(self, file, is_writable):
            pass

    return Modeless


def unlink_by_a_stale_name(monkeypatch):
    """Give a claim up by the name of its segment, which may be another one's by now."""

    def give_up(self):
        if not self.has_written:
            with contextlib.suppress(OSError):
                self._directory.unlink(segment_name(self.number))

    monkeypatch.setattr(SegmentWriter, "give_up", give_up)


def leave_marks_of_what_has_gone(monkeypatch):
    """Sweep temporary files, and nothing else."""
    monkeypatch.setattr(flowckpt.stores.file.claim, "parse_mark", lambda name: None)


def read_before_the_claim(monkeypatch):
    """Read the run, then claim it: a former owner may save in between."""
    claim_run = flowckpt.stores.file.claim.claim_run

    def hasty(opened, **options):
        early = read_image(opened.directory, opened.workflow_id, opened.fetch)
        owned = yield from claim_run(opened, **options)
        if not owned.image.is_cleared and not early.is_cleared:
            owned.image = early
            owned.last_sequence = early.last_sequence
        return owned

    monkeypatch.setattr(flowckpt.stores.file.runs, "claim_run", hasty)


def retry_a_failed_sync(monkeypatch):
    """Sync again after a failure: the second one succeeds and writes nothing."""

    class Stubborn(SimulatedFileSystem):
        def sync_data(self, file):
            try:
                super().sync_data(file)
            except OSError:
                super().sync_data(file)

    return Stubborn


def go_on_after_a_failure(monkeypatch):
    """Append the next record as if the failed one had not been."""
    original = SegmentWriter.check_usable

    def check_usable(self):
        self.is_poisoned = False
        original(self)

    monkeypatch.setattr(SegmentWriter, "check_usable", check_usable)


def append_to_the_old_segment(monkeypatch):
    """Go on in the segment of the attempt before, as most journals do."""
    claim_run = flowckpt.stores.file.claim.claim_run

    def reusing(opened, **options):
        directory, filesystem = opened.directory, opened.directory.calls
        with contextlib.suppress(FileNotFoundError):
            image = read_image(directory, opened.workflow_id, opened.fetch)
            if image.records and not image.is_cleared and image.records[-1].segment == image.newest:
                opened.lock = directory.open_lock(LOCK)
                opened.is_locked = filesystem.lock(opened.lock)
                if not opened.is_locked and not options["take_over"]:
                    raise RunLockedError(opened.workflow_id, holder=str(read_newest_owner(directory)))
                opened.is_locked = True
                flowckpt.stores.file.claim._sweep_leftovers(directory)
                file = filesystem.open_append(directory.descriptor, segment_name(image.newest))
                writer = SegmentWriter(opened, file, number=image.newest, digest=image.records[-1].digest)
                writer.has_written = True
                owned = FileRunWriter(opened, writer, image)
                owned.is_adopted = True
                owned.saved = image.history.view()
                return owned
        return (yield from claim_run(opened, **options))

    monkeypatch.setattr(flowckpt.stores.file.runs, "claim_run", reusing)


def no_copy_of_the_last_line(monkeypatch):
    """Adopt without a copy of the last line, which may never have reached the disk."""
    import attrs

    original = RunImage.make_cut
    monkeypatch.setattr(RunImage, "make_cut", lambda self, records: attrs.evolve(original(self, records), last_line=""))


def overwrite_instead_of_link(monkeypatch):
    """Claim a segment by a rename, which replaces what another one claimed first."""

    class Replacing(SimulatedFileSystem):
        def link(self, parent, source, target):
            self.called("link", target)
            inode = self.named(parent, source)
            assert isinstance(inode, File)
            replaced = self.directory(parent).names.get(target)
            if isinstance(replaced, File):
                replaced.links -= 1
            self.directory(parent).change((target, inode))
            inode.links += 1

    return Replacing


def clear_without_a_tombstone(monkeypatch):
    """Remove the files of a run one by one."""

    def unlinked(directory, workflow_id, now, seals):
        return 0

    def sweep(directory, tombstone):
        for name in sorted(directory.names(), reverse=True):
            if name not in ("blobs", LOCK):
                directory.unlink(name)
        directory.sync()

    monkeypatch.setattr(flowckpt.stores.file.runs, "write_tombstone", unlinked)
    monkeypatch.setattr(flowckpt.stores.file.runs, "sweep_cleared", sweep)


def tombstone_only_in_the_newest(monkeypatch):
    """Look for a tombstone in the newest segment alone: a claim that never began hides it."""
    original = flowckpt.stores.log.image._open_header

    def header(image, number, data, seals):
        found, sealed = original(image, number, data, seals)
        return found if number == image.newest else {key: found[key] for key in found if key != "kind"}, sealed

    monkeypatch.setattr(flowckpt.stores.log.image, "_open_header", header)


def forget_the_tombstone_early(monkeypatch):
    """Remove the tombstone before the removal of the rest is on the disk."""

    class Hasty(SimulatedFileSystem):
        def synced(self, name, file):
            if self.inode(file).role == "run" and self.sweeping:
                self.called(name, "run")
                return
            super().synced(name, file)

    Hasty.sweeping = False
    original = flowckpt.stores.file.runs.sweep_cleared

    def sweep(directory, tombstone):
        directory.calls.sweeping = True
        original(directory, tombstone)

    monkeypatch.setattr(flowckpt.stores.file.runs, "sweep_cleared", sweep)
    return Hasty


def take_a_torn_line_for_damage(monkeypatch):
    """Refuse the run for a write that a power cut has cut short."""
    monkeypatch.setattr(flowckpt.stores.log.segment, "is_torn", lambda tail, offset: False)


def take_a_refused_removal_for_none(monkeypatch):
    """Ask behind a refusal whether there is anything to remove, where what was refused is read already."""
    original = FileRuns._delete

    def delete(self, writer, wanted):
        try:
            return original(self, writer, wanted)
        except FencedError:
            if self._select_sequences(writer.workflow_id, wanted):
                raise
            return 0

    monkeypatch.setattr(FileRuns, "_delete", delete)


def forget_removals_behind_a_cut(monkeypatch):
    """Go back behind a removal, and let what it removed come back."""
    import attrs

    original = RunImage.make_cut
    monkeypatch.setattr(RunImage, "make_cut", lambda self, records: attrs.evolve(original(self, records), deleted=[]))


MUTANTS = {
    without_a_fence: in_turn,
    fence_before_the_sync: claiming_while_the_owner_looks,
    fence_by_the_next_number_alone: in_turn,
    claim_without_a_mark: in_turn,
    mark_after_the_reading: saving_into_a_claim,
    no_look_behind_the_first_line: claiming_a_number_given_up,
    take_the_mark_away_after_the_look: claiming_while_the_owner_looks,
    never_take_the_mark_away: claiming_while_the_owner_looks,
    mark_by_the_mode_alone: changing_modes_from_outside,
    mark_by_the_name_alone: saving_while_a_clear_is_finished,
    unlink_by_a_stale_name: waking_up_in_a_new_run,
    leave_marks_of_what_has_gone: stopping_claims_that_were_marked,
    read_before_the_claim: saving_into_a_claim,
    retry_a_failed_sync: saving_after_failures,
    go_on_after_a_failure: saving_after_failures,
    append_to_the_old_segment: saving_after_failures,
    no_copy_of_the_last_line: in_turn,
    overwrite_instead_of_link: claiming_at_once,
    clear_without_a_tombstone: claiming_after_half_a_clear,
    tombstone_only_in_the_newest: claiming_after_half_a_clear,
    forget_the_tombstone_early: claiming_after_half_a_clear,
    take_a_torn_line_for_damage: in_turn,
    take_a_refused_removal_for_none: claiming_into_a_removal,
    forget_removals_behind_a_cut: going_back_behind_a_removal,
}
"""Each broken store, and the scene to begin with."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_store_that_breaks_one_rule_is_caught(monkeypatch, mutant):
    """Each rule of the protocol is needed."""
    kind = mutant(monkeypatch)
    assert caught(monkeypatch, kind, first=MUTANTS[mutant]), f"nobody noticed {mutant.__name__}: {mutant.__doc__}"


def test_the_whole_store_is_not_caught(monkeypatch, is_soak):
    """The same scenes have nothing to say about the store as it is; nor have random lives, as `test_crash_states` shows."""
    told = {"lives": 60} if is_soak else {"lives": 0, "seeds": 1, "states": 1, "share": 0.3}
    assert caught(monkeypatch, first=waking_up_in_a_new_run, **told) is None


def test_the_digest_of_a_line_covers_the_lines_before():
    """What the mutants above rest upon: the same body behind another line is another line."""
    assert chain_line(b'{"a":1', b"\0" * 32)[0] != chain_line(b'{"a":1', b"\1" * 32)[0]
