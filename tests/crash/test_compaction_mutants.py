"""The crash checks of compaction can fail: one that leaves out a part of its protocol is caught by them."""

from __future__ import annotations

import contextlib
from random import Random

import pytest

import flowckpt.stores.file.claim
import flowckpt.stores.file.compaction
import flowckpt.stores.log.image
from flowckpt.errors import FencedError
from flowckpt.stores.file.layout import segment_name, segment_numbers
from tests.crash.simulation import SimulatedFileSystem
from tests.crash.workload import BrokenPromise, Tally, Workload, patched


def stealing_during_a_compaction(life):
    """A thief takes the run over at each point of a compaction, and saves; later it is compacted again."""
    for count in range(5, 37, 2):
        life.disk.before_change = lambda name, role: None
        for each in list(life.writers):
            life.kill(each)
        life.compact()
        for _ in range(2):
            life.acquire(take_over=True)
            life.writers[-1].is_fresh = False
            life.save(life.writers[-1])
            life.kill(life.writers[-1])
        points = iter(range(count, -1, -1))

        def at_point(name, role, points=points):
            if next(points, None) == 0 and life.acquire(take_over=True):
                life.writers[-1].is_fresh = False
                life.save(life.writers[-1])

        life.disk.before_change = at_point
        life.compact()
        life.attach()
        if life.writers:
            life.disk.before_change = lambda name, role: None
            life.save(life.writers[-1])
            life.attach()
        life.examine()


def saving_during_a_compaction(life):
    """One that stole the run, and so has no lock, saves at each point of a compaction."""
    for count in range(8):
        life.acquire(take_over=True)
        life.acquire(take_over=True)
        *others, owner = life.writers
        owner.is_fresh = False
        life.save(owner)
        for each in others:
            life.kill(each)
        points = iter(range(count, -1, -1))

        def at_point(name, role, owner=owner, points=points):
            if next(points, None) == 0:
                life.save(owner)

        life.disk.before_change = at_point
        life.random.seed(next(seed for seed in range(100) if Random(seed).random() >= 0.8))  # nobody is killed
        life.compact()
        life.attach()
        life.examine()
        life.kill(owner)


def compacting_what_was_deleted(life):
    """Checkpoints are deleted, and the run is compacted, again and again."""
    for _ in range(4):
        life.acquire(take_over=True)
        writer = life.writers[-1]
        for _ in range(3):
            writer.is_fresh = False
            life.save(writer)
        life.delete(writer)
        life.kill(writer)
        life.compact()
        life.examine()


def removing_what_an_earlier_attempt_saved(life):
    """Attempts remove what earlier ones saved, continue or go back, and a compaction is cut short at each of its points."""
    life.is_copied = True
    life.disk.before_change = lambda name, role: None
    for act in (life.save, life.delete, life.save):
        life.acquire(take_over=True)
        for _ in range(2 if act == life.save else 1):
            act(life.writers[-1])
        life.kill(life.writers[-1])
    life.attach()
    life.compact()
    life.examine()


SCENES = (
    saving_during_a_compaction,
    stealing_during_a_compaction,
    compacting_what_was_deleted,
    removing_what_an_earlier_attempt_saved,
)


def caught(monkeypatch, mount_kind=None, lives=30, first=saving_during_a_compaction, share=1.0):
    """Play the scenes, then live at random, until the checks object; return what they said, or None."""
    processes = patched(monkeypatch)
    tally = Tally()
    for scene in [first, *(scene for scene in SCENES if scene is not first)]:
        life = Workload(0, processes, tally, mount_kind=mount_kind, states=1, compacting=0.3, share=share)
        try:
            scene(life)
        except BrokenPromise as broken:
            return f"{scene.__name__}: {broken}"
    for seed in range(lives):
        try:
            Workload(seed, processes, tally, mount_kind=mount_kind, states=1, compacting=0.3).live()
        except BrokenPromise as broken:
            return f"life {seed}: {broken}"
    return None


def no_sync_of_the_pack(monkeypatch):
    """Remove what the pack stands in for, while the disk does not hold the pack."""

    class Lazy(SimulatedFileSystem):
        def synced(self, name, file):
            inode = self.inode(file)
            if inode.role == "segment" and b'"kind":"pack"' in getattr(inode, "data", b""):
                self.called(name, inode.role)
                return
            super().synced(name, file)

    return Lazy


def no_sync_of_its_name(monkeypatch):
    """Remove the older segments while the name of the pack is not on the disk."""

    class Lazy(SimulatedFileSystem):
        is_packing = False

        def link(self, parent, source, target):
            super().link(parent, source, target)
            self.is_packing = b'"kind":"pack"' in self.named(parent, target).data

        def synced(self, name, file):
            if self.is_packing and self.inode(file).role == "run":
                self.is_packing = False
                self.called(name, "run")
                return
            super().synced(name, file)

    return Lazy


def written_in_place(monkeypatch):
    """Write the pack under its name, line by line, where readers see the first half of it."""

    def write(directory, workflow_id, number, lines, *sealing):
        file = directory.create(segment_name(number))
        try:
            for place in range(len(lines)):
                flowckpt.stores.file.compaction._write_lines(directory.calls, file, lines[place : place + 1], None)
            directory.calls.sync(file)
        finally:
            directory.calls.close(file)
        directory.sync()

    monkeypatch.setattr(flowckpt.stores.file.compaction, "_write_pack", write)


def no_look_behind_the_link(monkeypatch):
    """Take it for granted that nobody claimed the run while the pack was written."""

    original = flowckpt.stores.file.compaction._write_pack

    def write(directory, workflow_id, number, lines, *sealing):
        numbers = flowckpt.stores.file.compaction.segment_numbers
        monkeypatch.setattr(flowckpt.stores.file.compaction, "segment_numbers", lambda names: [number])
        try:
            original(directory, workflow_id, number, lines, *sealing)
        finally:
            monkeypatch.setattr(flowckpt.stores.file.compaction, "segment_numbers", numbers)

    monkeypatch.setattr(flowckpt.stores.file.compaction, "_write_pack", write)


def take_the_pack_back(monkeypatch):
    """Remove the pack where a thief is found, which may have continued from it."""
    module = flowckpt.stores.file.compaction
    original = module._write_pack

    def write(directory, workflow_id, number, lines, *sealing):
        try:
            original(directory, workflow_id, number, lines, *sealing)
        except FencedError as fenced:
            if fenced.newest_attempt != number:
                directory.unlink(segment_name(number))
            raise

    monkeypatch.setattr(module, "_write_pack", write)


def over_the_number_of_a_thief(monkeypatch):
    """Rename the pack to its name, over the claim of a thief."""

    class Replacing(SimulatedFileSystem):
        def link(self, parent, source, target):
            if b'"kind":"pack"' in self.named(parent, source).data and target in self.directory(parent).names:
                self.named(parent, target).links -= 1
                self.directory(parent).names.pop(target)
            super().link(parent, source, target)

    return Replacing


def read_before_the_claim(monkeypatch):
    """Make the pack of what was read before the last writer was fenced."""
    module = flowckpt.stores.file.compaction
    original, read = module.load_attempts, {}

    def load_attempts(directory, workflow_id, seals, *, below=None):
        if below is None:
            read[id(directory.calls)] = original(directory, workflow_id, seals)
        return read[id(directory.calls)]

    monkeypatch.setattr(module, "load_attempts", load_attempts)


def forget_the_highest_sequence(monkeypatch):
    """Take the highest sequence from the records that are left."""
    module = flowckpt.stores.file.compaction
    original = module.encode_pack

    def encode_pack(attempts, header, *begun):
        attempts.last_sequence = 0
        return original(attempts, header, *begun)

    monkeypatch.setattr(module, "encode_pack", encode_pack)


def bring_removed_checkpoints_back(monkeypatch):
    """Write the checkpoints that were removed, and not that they were."""
    module = flowckpt.stores.file.compaction
    original = module.encode_pack

    def encode_pack(attempts, header, *begun):
        attempts.gone = set()
        return original(attempts, header, *begun)

    monkeypatch.setattr(module, "encode_pack", encode_pack)


def remove_before_the_pack(monkeypatch):
    """Remove the older segments first."""
    module = flowckpt.stores.file.compaction
    write, remove = module._write_pack, module._remove_below

    def write_late(directory, workflow_id, number, lines, *sealing):
        remove(directory, number, number - 1)
        write(directory, workflow_id, number, lines, *sealing)

    monkeypatch.setattr(module, "_write_pack", write_late)


def find_orphans_late(monkeypatch):
    """Look for values that nothing names when a thief may have saved some."""
    module = flowckpt.stores.file.compaction
    original = module.open_orphans

    @contextlib.contextmanager
    def open_orphans(run, kept):
        class Late:
            def remove(self):
                with original(run, kept) as orphans:
                    if orphans is not None:
                        orphans.remove()

        yield Late()

    monkeypatch.setattr(module, "open_orphans", open_orphans)


def remove_values_that_are_named(monkeypatch):
    """Take the results of the newest attempt for all that names a large value."""
    module = flowckpt.stores.file.compaction
    original = module.find_needed_names
    monkeypatch.setattr(module, "find_needed_names", lambda lines, there, values: original(lines[-1:], there, values))


def read_what_is_left_of_an_attempt(monkeypatch):
    """Read an attempt from its own segment as long as that is there, which does not say what was removed later."""
    module = flowckpt.stores.log.image
    original = module._find_segments_of

    def left_by(image, numbers, read, seals, attempt):
        if attempt not in numbers:
            return original(image, numbers, read, seals, attempt)
        return module._follow_back(image, [number for number in numbers if number <= attempt], read, seals)

    monkeypatch.setattr(module, "_find_segments_of", left_by)


MUTANTS = {
    no_sync_of_the_pack: saving_during_a_compaction,
    no_sync_of_its_name: compacting_what_was_deleted,
    written_in_place: saving_during_a_compaction,
    no_look_behind_the_link: compacting_what_was_deleted,
    take_the_pack_back: stealing_during_a_compaction,
    over_the_number_of_a_thief: stealing_during_a_compaction,
    read_before_the_claim: saving_during_a_compaction,
    forget_the_highest_sequence: compacting_what_was_deleted,
    bring_removed_checkpoints_back: compacting_what_was_deleted,
    remove_before_the_pack: stealing_during_a_compaction,
    find_orphans_late: stealing_during_a_compaction,
    remove_values_that_are_named: saving_during_a_compaction,
    read_what_is_left_of_an_attempt: removing_what_an_earlier_attempt_saved,
}
"""Each broken compaction, and the scene to begin with."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_compaction_that_breaks_one_rule_is_caught(monkeypatch, mutant):
    """Each rule of the protocol is needed."""
    kind = mutant(monkeypatch)
    assert caught(monkeypatch, kind, first=MUTANTS[mutant]), f"nobody noticed {mutant.__name__}: {mutant.__doc__}"


def test_the_compaction_as_it_is_is_not_caught(monkeypatch, is_soak):
    """The same scenes have nothing to say about it; nor have random lives, as `test_crash_states` shows."""
    assert caught(monkeypatch, **({} if is_soak else {"lives": 0, "share": 0.3})) is None


def test_a_thief_at_each_point_of_a_compaction_keeps_what_it_saves(monkeypatch):
    """The scene does what it says: in some rounds the thief wins, in some the compaction does."""
    processes = patched(monkeypatch)
    life = Workload(1, processes, Tally(), states=1, compacting=0.3, share=0.1)
    stealing_during_a_compaction(life)
    assert 16 < life.tally.compactions < 32
    assert segment_numbers([*life.segments()[1]])
