"""A random life of one run on a simulated disk, and what must hold at every point of it.

The oracle keeps the set of histories that a reader may be shown: the last one acknowledged, and with it those of
operations that are under way or whose outcome was reported as unknown. At each call that changes the disk, states that
a crash may leave are built, and each is recovered: read, taken over, saved to, cut off from power once more, and read
again.
"""

from __future__ import annotations

import errno
import functools
from contextlib import contextmanager
from random import Random

import attrs

import flowckpt.core.codec.blob
import flowckpt.stores.file.claim
import flowckpt.stores.file.compaction
import flowckpt.stores.file.directory
import flowckpt.stores.file.layout
import flowckpt.stores.file.reader
import flowckpt.stores.file.run_writer
import flowckpt.stores.file.values
import flowckpt.stores.log.image
import flowckpt.stores.log.sealing.lines
import flowckpt.stores.log.segment
from flowckpt.core.records import CheckpointData, Reason, StepResult
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.core.system.process import ProcessIdentity
from flowckpt.errors import CheckpointStorageError, FencedError, FlowckptError, RunLockedError
from flowckpt.maintenance import copy_run
from flowckpt.stores import FileCheckpointStore, MemoryCheckpointStore
from flowckpt.stores.file.layout import parse_mark, segment_name
from flowckpt.stores.log.image import read_run
from flowckpt.testing import FakeClock
from tests.crash.simulation import CHANGES, Disk, nothing_fails

RUN = "run"
NOON = FakeClock().now()


class BrokenPromise(AssertionError):
    """The store did what it promised never to do."""


class Processes:
    """Which simulated process calls, and which ones live."""

    def __init__(self) -> None:
        self.current = 0
        self.live: set[int] = set()
        self.last = 0
        self.seen = None
        """The run as the reader that looks at a state has read it; False until it has, and None where it is not kept."""

    @contextmanager
    def reading(self):
        self.seen = False
        try:
            yield
        finally:
            self.seen = None

    def begin(self) -> int:
        self.last += 1
        self.live.add(self.last)
        return self.last

    def read_run(self, *given, **named):
        """Read a run; where a reader has read the same bytes before, as it did then: that is how an owner reads."""
        if self.seen is None or named.get("attempt") is not None:
            return read_run(*given, **named)
        self.seen = found = read_run(*given, **{**named, "known": self.seen or None})
        return found

    def identity(self) -> ProcessIdentity:
        return ProcessIdentity("host", "boot", self.current, 1)

    def is_alive(self, process: ProcessIdentity) -> bool:
        return process.pid in self.live


def patched(monkeypatch) -> Processes:
    """Put simulated processes in the place of real ones, and make small values large ones."""
    processes = Processes()
    tokens = iter(range(10**9))
    monkeypatch.setattr(flowckpt.core.codec.blob, "BLOB_SIZE", 700)
    for module in (flowckpt.stores.file.claim, flowckpt.stores.file.directory):
        monkeypatch.setattr(module, "current_process", processes.identity)
        monkeypatch.setattr(module, "new_token", lambda n: f"{next(tokens):016x}")
    for module in (flowckpt.stores.file.claim, flowckpt.stores.file.reader, flowckpt.stores.file.layout):
        monkeypatch.setattr(module, "is_alive", processes.is_alive)
    monkeypatch.setattr(flowckpt.stores.file.run_writer, "monotonic", lambda: 0.0)  # the marks alone must do
    monkeypatch.setattr(flowckpt.stores.file.directory, "_LOCK_TRIES", 1)
    monkeypatch.setattr(flowckpt.stores.file.directory, "_LOCK_PAUSE_SECONDS", 0)
    parse_header = headers_read_once(flowckpt.stores.log.segment.parse_header)
    for module in (flowckpt.stores.log.segment, flowckpt.stores.log.image, flowckpt.stores.file.reader):
        monkeypatch.setattr(module, "parse_header", parse_header)
    monkeypatch.setattr(flowckpt.stores.file.directory, "read_run", processes.read_run)
    lines = flowckpt.stores.log.sealing.lines
    monkeypatch.setattr(
        lines, "derive_key", functools.cache(lines.derive_key)
    )  # of one segment, they are always the same
    return processes


def headers_read_once(read):
    """Read each header once: its bytes say all of it, and thousands of states hold the same one, read ten times in each."""
    known = {}

    def parse_header(data):
        line = data[: data.find(b"\n") + 1]
        found = known.get(line)
        if found is None:
            found = known[line] = read(data)
        header, end, digest = found
        return {**header}, end, digest

    return parse_header


def done(coroutine):
    """Run a coroutine of a store to its end without a loop: where it may block, it never waits."""
    with blocking_allowed(allowed=True):
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value
    raise RuntimeError("it waited")


@attrs.frozen
class Entry:
    """A checkpoint as it was meant: its results' outputs are the whole history."""

    sequence: int
    name: str
    outputs: tuple[str, ...]

    def data(self, attempt: int, **fields: object) -> CheckpointData:
        results = [StepResult(f"s{index}", output=output) for index, output in enumerate(self.outputs)]
        return CheckpointData(self.name, "etl", "sha256:v1:0", results, NOON, self.sequence, attempt, **fields)


def shape(version):
    """What a reader sees of a history: its checkpoints, and the results of the newest."""
    return (
        tuple((entry.sequence, entry.name, len(entry.outputs)) for entry in version),
        version[-1].outputs if version else (),
    )


def shown(store):
    """Read a run: the same form as `shape`."""
    return told(done(store.list_checkpoints(RUN)), done(store.load_latest(RUN)))


def shown_at_once(store):
    """The same out of the record read once; what `shown` asks for reads it each time, in the same way."""
    found = store.runs.load_run(RUN)
    return told(found.image.references()[::-1], found.latest())


def listed_behind(store):
    """All that any attempt is shown to have saved, also what a later one went back behind: by attempt, the sequences."""
    listed = {n: [ref.sequence for ref in done(store.list_attempt(RUN, n))] for n in done(store.attempts(RUN))}
    return {number: sequences for number, sequences in listed.items() if sequences}


def read_behind(store):
    """The same, from the checkpoints themselves."""
    read = {n: [data.sequence for data in done(store.read_attempt(RUN, n))] for n in done(store.attempts(RUN))}
    return {number: sequences for number, sequences in read.items() if sequences}


def told(references, latest):
    outputs = () if latest is None else tuple(result.output for result in latest.step_results)
    return tuple((ref.sequence, ref.checkpoint_id, ref.steps) for ref in reversed(references)), outputs


@attrs.define(eq=False)
class Writer:
    """A process with a store that owns, or once owned, the run."""

    store: FileCheckpointStore
    mount: object
    pid: int
    attempt: int = 0
    found: tuple | None = None
    version: tuple = ()
    outputs: tuple[str, ...] = ()
    last_sequence: int = 0
    is_fresh: bool = True
    is_refused: bool = False
    epoch: int = 0


@attrs.define
class Tally:
    """What was examined, over all workloads."""

    def __str__(self) -> str:
        return (
            f"{len(self.states)} distinct states, {len(self.deep_states)} after a second crash, "
            f"{self.acknowledged} acknowledged, {self.compactions} compactions, {self.generations} generations"
        )

    states: set = attrs.field(factory=set)
    examined: set = attrs.field(factory=set)
    acknowledged: int = 0
    compactions: int = 0
    generations: int = 0
    recoveries: int = 0
    readings: int = 0
    deep_states: set = attrs.field(factory=set)
    """States that a second crash left, in the middle of a recovery from the first."""


class Workload:
    """One random life.

    Args:
        seed: decides everything, but for `share`.
        processes: the simulated processes.
        tally: counts over all workloads, and which states need no second look.
        mount_kind: the file system of the processes; a broken one for a mutant.
        states: how many random states are built at each point, beside the extremes.
        nesting: how often another process may come in between the calls of an operation.
        compacting: how often the run is compacted.
        continuing: how often its owner continues it as another generation.
        protections: what the stores of the processes are told, one of them each time; the keys are the same in all.
        is_copied: whether each state is asked for all that each attempt left, and copied; else it is some of them.
        share: the share of the states that are recovered, others each time; all of them where not given.
        deep: the share of the recoveries in which each call that changes the disk meets a second crash, and is recovered.
    """

    def __init__(
        self,
        seed,
        processes,
        tally,
        *,
        mount_kind=None,
        states=3,
        nesting=0.3,
        compacting=0.0,
        continuing=0.0,
        protections=(),
        is_copied=False,
        share=1.0,
        deep=0.0,
    ):
        self.random = Random(seed)
        self.processes = processes
        self.tally = tally
        self.mount_kind = mount_kind
        self.states = states
        self.nesting = nesting
        self.compacting = compacting
        self.continuing = continuing
        self.protections = protections
        self.is_copied = is_copied
        self.share = share
        self.deep, self.deep_random = deep, Random(f"deep {seed}")
        self.picks = Random()
        self.disk = Disk()
        self.writers: list[Writer] = []
        self.possible = {()}
        self.flying: list[tuple[int, set]] = []
        self.begun = 0
        self.epoch = 0
        self.acknowledged_sequence = 0
        self.kept: set[int] = set()
        self.removed: set[int] = set()
        self.outputs = 0
        self.may_nest = False
        self.is_failing = False
        self.attach()

    # --- the disk ----------------------------------------------------------------------------------------------------

    def attach(self):
        self.disk.before_change = self.at_point
        self.disk.random = Random(self.random.random())

    def opened(self, disk):
        pid = self.processes.begin()
        mount = disk.mount(self.mount_kind)
        told = self.random.choice(self.protections) if self.protections else {}
        store = FileCheckpointStore("/store", filesystem=mount, clock=FakeClock(), **told)
        return Writer(store, mount, pid, epoch=self.epoch)

    @contextmanager
    def as_process(self, writer):
        before, self.processes.current = self.processes.current, writer.pid
        try:
            yield
        finally:
            self.processes.current = before

    def allowed(self):
        found = set(self.possible)
        for attempt, candidates in self.flying:
            if attempt >= self.begun:
                found |= candidates
        return found

    # --- a crash at this point ----------------------------------------------------------------------------------------

    def at_point(self, name, role):
        self.examine()
        if self.may_nest and len(self.flying) == 1 and self.random.random() < 0.25:
            self.may_nest = False
            fail, self.disk.fail = self.disk.fail, nothing_fails
            self.nested()
            self.disk.fail = fail

    def examine(self):
        allowed = {shape(version) for version in self.allowed()}
        choices = ["nothing", "everything", "kill", *["some"] * self.states]
        for choice in choices:
            if choice == "kill":
                disk = self.disk.after_kill()
            else:
                disk = self.disk.after_power_cut(self.random, choice)
            digest = disk.digest(with_cache=choice == "kill")
            self.tally.states.add(digest)
            promised = (self.acknowledged_sequence, frozenset(self.kept), frozenset(self.removed))
            key = hash((digest, frozenset(allowed), promised))
            if key not in self.tally.examined and self.picks.random() < self.share:
                self.tally.examined.add(key)
                self.recover(disk, allowed, choice)

    def crash_again(self, disk, allowed, choice, floor):
        """Look at what a second crash leaves, at each call of a recovery that changes the disk; `allowed` may change."""

        def at_point(name, role):
            for second in ("nothing", "some", "kill"):
                left = disk.after_kill() if second == "kill" else disk.after_power_cut(self.deep_random, second)
                digest = left.digest(with_cache=second == "kill")
                key = hash((digest, frozenset(allowed)))
                if key not in self.tally.deep_states:
                    self.tally.deep_states.add(key)
                    self.recover(left, set(allowed), f"{choice}, then {second}", floor=floor)

        if self.deep_random.random() < self.deep:
            disk.before_change = at_point

    def recover(self, disk, allowed, choice, *, floor=None):
        is_first = floor is None
        floor = self.acknowledged_sequence if floor is None else floor
        self.tally.recoveries += 1
        current = self.processes.current
        live, self.processes.live = self.processes.live, set()
        try:
            seen = self.read(disk, choice)
            if seen not in allowed:
                raise BrokenPromise(f"{choice}: shows {seen}, allowed are {allowed}")
            writer = self.opened(disk)
            # After a kill, a power cut may still undo what was on its way to the disk, until the recovery has saved.
            possible = set(allowed) if choice == "kill" else {seen}
            if is_first:
                self.crash_again(disk, possible, choice, floor if seen[0] else 0)  # a cleared run begins with 1
            with self.as_process(writer):
                lease = done(writer.store.acquire(RUN))
                newest = seen[0][-1][0] if seen[0] else 0
                if (lease.latest.sequence if lease.latest else 0) != newest:
                    raise BrokenPromise(f"{choice}: acquired {lease}, read {seen}")
                if seen[0] and lease.last_sequence < floor:
                    raise BrokenPromise(f"{choice}: the sequence fell back to {lease.last_sequence}")
                entry = Entry(lease.last_sequence + 1, "recovered", (*seen[1], "recovered"))
                expected = ((*seen[0], (entry.sequence, "recovered", len(entry.outputs))), entry.outputs)
                possible.add(expected)
                done(writer.store.save(RUN, entry.data(lease.attempt)))
                possible.intersection_update({expected})
                disk.before_change("end", "")
            disk.before_change = lambda name, role: None
            self.no_left_overs(disk)
            writer.mount.kill()
            for again in self.both(disk):
                found = self.read(again, choice)
                if found != expected:
                    raise BrokenPromise(f"{choice}: after recovery {found} instead of {expected}")
            if self.compacting and self.tally.recoveries % 3 == 0:
                self.compact_recovered(disk, expected, choice)
        except FlowckptError as error:
            raise BrokenPromise(f"{choice}: recovery failed: {error!r}") from error
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise BrokenPromise(f"{choice}: a raw {error!r} came out") from error
        finally:
            self.processes.current, self.processes.live = current, live

    def compact_recovered(self, disk, expected, choice):
        writer = self.opened(disk)
        with self.as_process(writer):
            done(writer.store.compact(RUN, is_forced=True))
        self.no_left_overs(disk)
        _, segments = self.segments(disk)
        if len(segments) > 1:
            raise BrokenPromise(f"{choice}: a compaction left {sorted(segments)}")
        for again in self.both(disk):
            found = self.read(again, choice)
            if found != expected:
                raise BrokenPromise(f"{choice}: after a compaction {found} instead of {expected}")

    def read(self, disk, choice):
        reader = self.opened(disk)
        with self.as_process(reader), self.processes.reading():
            self.tally.readings += 1
            is_asked_in_all_ways = self.tally.readings % 7 == 0  # of several in a recovery, each in turn
            found = (shown if is_asked_in_all_ways else shown_at_once)(reader.store)
            if is_asked_in_all_ways:
                runs = [(info.workflow_id, info.steps) for info in done(reader.store.list_runs())]
                if runs != ([(RUN, len(found[1]))] if found[0] else []):
                    raise BrokenPromise(f"{choice}: lists {runs}, reads {found}")
                if any(finding.severity == "corrupt" for finding in done(reader.store.check())):
                    raise BrokenPromise(f"{choice}: the check finds damage")
            if self.is_copied or self.tally.recoveries % 12 == 0:
                self.look_behind(reader.store, choice)
            if reader.mount.open_files:
                raise BrokenPromise(f"{choice}: descriptors were left open: {reader.mount.open_files}")
        return found

    def look_behind(self, store, choice):
        """What any attempt saved is there, but for what was removed; and so it is in a copy."""
        left = listed_behind(store)
        there = {sequence for sequences in left.values() for sequence in sequences}
        if there & self.removed:
            raise BrokenPromise(f"{choice}: removed were {self.removed}, and attempts show {left}")
        if self.kept - there:
            raise BrokenPromise(f"{choice}: saved were {self.kept}, and attempts show {left}")
        if not self.is_copied:
            return
        copy = MemoryCheckpointStore()
        if left:
            done(copy_run(store, copy, RUN))
        for name, found in {"read": read_behind(store), "copied": listed_behind(copy)}.items():
            if found != left:
                raise BrokenPromise(f"{choice}: attempts are {name} as {found}, and listed as {left}")

    def both(self, disk):
        """A disk, and the same after a power cut; mostly that alone where nothing of the run was left to be lost."""
        cut = disk.after_power_cut(None, "nothing")
        return (cut,) if disk.is_on_the_disk() and self.tally.recoveries % 4 else (disk, cut)

    def no_left_overs(self, disk):
        places = [disk.root]
        while places:
            names = places.pop().names
            for name, inode in names.items():
                if name.startswith(".new-"):
                    raise BrokenPromise(f"a temporary file of a dead process was left: {name}")
                marked = parse_mark(name)
                if marked is not None and segment_name(marked) not in names:
                    raise BrokenPromise(f"the mark of a segment that has gone was left: {name}")
                if hasattr(inode, "names"):
                    places.append(inode)

    # --- the operations -----------------------------------------------------------------------------------------------

    def live(self):
        """A life of some operations, from an empty disk."""
        for _ in range(self.random.randint(8, 22)):
            self.step()
            self.is_failing = False
            self.disk.fail = nothing_fails
            self.examine()

    def step(self):
        chance = self.random.random()
        if self.random.random() < 0.1:
            self.meddle()
        if self.random.random() < 0.15:
            self.fail_soon()
        self.may_nest = self.random.random() < self.nesting
        owner = self.writers[-1] if self.writers else None
        if self.compacting and self.random.random() < self.compacting:
            self.compact()
        elif self.continuing and owner is not None and self.random.random() < self.continuing:
            self.begin_generation(owner)
        elif owner is None or chance < 0.12:
            if owner is not None and self.random.random() < 0.5:
                self.kill(owner)
            self.acquire(take_over=self.random.random() < 0.7)
        elif chance < 0.70:
            self.save(owner if self.random.random() < 0.85 else self.random.choice(self.writers))
        elif chance < 0.76:
            self.release(owner)
        elif chance < 0.84:
            self.delete(owner)
        elif chance < 0.89:
            self.clear(owner)
        elif chance < 0.94:
            self.kill(owner)
        else:
            self.cut_power()

    def nested(self):
        """Another process comes in between."""
        others = [writer for writer in self.writers if writer.pid != self.processes.current]
        if others and self.random.random() < 0.5:
            self.save(others[-1])
        elif self.acquire(take_over=True) and self.random.random() < 0.7:
            self.save(self.writers[-1])

    def segments(self, disk=None):
        """The directory of the run and the files of its segments, by name; without a call of anybody."""
        root = (disk or self.disk).root
        runs = None if root is None else root.names.get("runs")
        run = None if runs is None else runs.names.get(RUN)
        names = {} if run is None else run.names
        return run, {name: inode for name, inode in names.items() if name.endswith(".jsonl")}

    def meddle(self):
        """Somebody who knows nothing of the store changes modes, or makes a backup of hard links."""
        _, segments = self.segments()
        is_backup = self.random.random() < 0.3
        for file in segments.values():
            file.is_writable = True
            file.links += is_backup

    def fail_soon(self):
        self.is_failing = True
        left = self.random.randint(1, 14)
        only_syncs = self.random.random() < 0.5

        def fail(name, role):
            nonlocal left
            if name in CHANGES and name not in ("make_root", "remove_directory"):
                left -= 1 if not only_syncs or name.startswith("sync") else 0
                if left == 0:
                    left = -1
                    return errno.ENOSPC if name in ("write", "create") and self.random.random() < 0.5 else errno.EIO
            return 0

        self.disk.fail = fail

    def fail_at(self, count):
        """Let the n-th changing call from here on fail; None for none."""
        self.is_failing = count is not None
        left = count or 0

        def fail(name, role):
            nonlocal left
            left -= name in CHANGES
            return errno.EIO if name in CHANGES and left == 0 and count else 0

        self.disk.fail = fail

    @contextmanager
    def in_flight(self, writer, candidates):
        """An operation that may end in one of these histories, however it ends."""
        self.flying.append((writer.attempt, candidates))
        try:
            with self.as_process(writer):
                yield
        finally:
            self.flying.pop()

    def unknown(self, writer, candidates):
        if writer.attempt >= self.begun and writer.epoch == self.epoch:
            self.possible |= candidates

    def acknowledge(self, writer, version):
        if writer.is_refused:
            raise BrokenPromise("a save was acknowledged on a handle that had failed or been fenced")
        self.tally.acknowledged += 1
        for later in self.writers:
            if later.found is None or later.attempt <= writer.attempt or later.epoch != writer.epoch:
                continue
            if shape(later.found) != shape(version):
                raise BrokenPromise(f"acknowledged {version}, and attempt {later.attempt} continued from {later.found}")
        if writer.attempt >= self.begun:  # else a later attempt has continued from it, before the word of it came back
            self.possible = {version}
            self.begun = writer.attempt
        writer.version, writer.is_fresh = version, False

    def failed(self, writer, candidates, error):
        if not (isinstance(error, FencedError) or self.is_failing or writer.is_refused):
            raise BrokenPromise(f"failed without a reason: {error!r}") from error
        writer.is_refused = True
        self.unknown(writer, candidates)

    def acquire(self, *, take_over):
        writer = self.opened(self.disk)
        writer.attempt = 10**6  # whatever it finishes (a clear that was cut short) is not older than what was begun
        try:
            with self.in_flight(writer, set()):
                lease = done(writer.store.acquire(RUN, take_over=take_over))
        except RunLockedError:
            self.kill(writer)
            return False
        except CheckpointStorageError as error:
            if not self.is_failing:
                raise BrokenPromise(f"acquire failed without a reason: {error!r}") from error
            self.kill(writer)
            return False
        if lease.attempt < self.begun:  # another one claimed and saved while this one was on its way
            writer.attempt, writer.epoch, writer.last_sequence = lease.attempt, self.epoch, lease.last_sequence
            writer.outputs = tuple(result.output for result in lease.latest.step_results) if lease.latest else ()
            self.writers.insert(0, writer)
            return False
        with self.as_process(writer):
            seen = shown(writer.store)
        found = [version for version in self.allowed() if shape(version) == seen]
        if not found or (lease.latest.sequence if lease.latest else 0) != (seen[0][-1][0] if seen[0] else 0):
            raise BrokenPromise(f"acquired {lease.latest}, shown {seen}, allowed {self.allowed()}")
        writer.attempt, writer.last_sequence = lease.attempt, lease.last_sequence
        writer.found = writer.version = found[0]
        writer.epoch, writer.outputs = self.epoch, seen[1]
        self.writers.append(writer)
        return True

    def save(self, writer):
        version = writer.version
        outputs = writer.outputs
        if writer.is_fresh and self.random.random() < 0.3:
            outputs = outputs[: self.random.randint(0, len(outputs))]
        shared = len(outputs)
        for _ in range(self.random.choice([0, 1, 1, 1, 2, 5])):
            self.outputs += 1
            length = self.random.choice([1, 20, 450, 650, 1500])
            outputs = (*outputs, f"{self.outputs}:" + self.random.choice("xä") * length)
        kept = tuple(entry for entry in version if len(entry.outputs) <= shared) if writer.is_fresh else version
        name = self.random.choice(["a", "b", f"c{writer.last_sequence}"])
        entry = Entry(max(writer.last_sequence, 0) + self.random.choice([1, 1, 3]), name, outputs)
        candidates = {kept, (*kept, entry)}
        try:
            with self.in_flight(writer, candidates):
                done(writer.store.save(RUN, entry.data(writer.attempt)))
        except (FencedError, CheckpointStorageError) as error:
            self.failed(writer, candidates, error)
            return
        except FlowckptError as error:
            raise BrokenPromise(f"refused without a reason: {error!r}") from error
        self.acknowledge(writer, (*kept, entry))
        writer.last_sequence = entry.sequence
        self.acknowledged_sequence = max(self.acknowledged_sequence, entry.sequence)
        self.kept.add(entry.sequence)
        writer.outputs = outputs

    def begin_generation(self, writer):
        """The owner continues the run as another generation: one save, and nothing that came before it is there."""
        if not writer.version or writer.is_refused:
            return
        former = writer.attempt
        try:
            with self.in_flight(writer, set()):
                lease = done(writer.store.begin_generation(RUN))
        except (FencedError, CheckpointStorageError) as error:
            if not isinstance(error, FencedError) and not self.is_failing:
                raise BrokenPromise(f"no generation, without a reason: {error!r}") from error
            self.kill(writer)
            return
        if lease.attempt <= former or lease.last_sequence < writer.last_sequence:
            raise BrokenPromise(f"attempt {former} was followed by {lease}")
        writer.attempt, writer.found, writer.is_fresh = lease.attempt, None, False
        entry = Entry(lease.last_sequence + 1, "next", ())
        before = {*self.kept}
        self.kept = set()
        large = "g" * self.random.choice([1, 1500])
        candidates = {(entry,)}
        try:
            with self.in_flight(writer, candidates):
                done(writer.store.save(RUN, entry.data(writer.attempt, reason=Reason.CONTINUED, snapshot=large)))
        except (FencedError, CheckpointStorageError) as error:
            self.failed(writer, candidates, error)
            return
        self.acknowledge(writer, (entry,))
        if writer.attempt >= self.begun:
            self.removed |= before
        self.tally.generations += 1
        self.kept.add(entry.sequence)
        writer.last_sequence, writer.outputs = entry.sequence, ()
        self.acknowledged_sequence = max(self.acknowledged_sequence, entry.sequence)

    def delete(self, writer):
        if not writer.version or writer.is_refused:
            return
        name = self.random.choice(writer.version).name
        after = tuple(entry for entry in writer.version if entry.name != name)
        candidates = {writer.version, after}
        if shape(writer.version) not in {shape(version) for version in self.possible}:
            return
        doomed = {entry.sequence for entry in writer.version if entry.name == name}
        self.kept -= doomed
        try:
            with self.in_flight(writer, candidates):
                if not done(writer.store.delete_checkpoint(RUN, name)):
                    if all(any(entry.name == name for entry in each) for each in self.possible):
                        raise BrokenPromise(f"there is no {name}, it says, and there is: {self.possible}")
                    return  # a later attempt had removed it, and so nothing was promised
        except (FencedError, CheckpointStorageError) as error:
            self.failed(writer, candidates, error)
            return
        self.acknowledge(writer, after)
        self.removed |= doomed

    def release(self, writer):
        try:
            with self.in_flight(writer, set()):
                done(writer.store.release(RUN))
        except CheckpointStorageError as error:
            self.failed(writer, set(), error)
        self.kill(writer)

    def compact(self):
        """Somebody compacts the run, while thieves may come in between."""
        if self.random.random() < 0.8:
            for each in list(self.writers):
                self.kill(each)
        writer = self.opened(self.disk)
        writer.attempt = 10**6
        try:
            with self.in_flight(writer, set()):
                done(writer.store.compact(RUN, is_forced=True))
        except (RunLockedError, FencedError):
            pass
        except CheckpointStorageError as error:
            if not self.is_failing:
                raise BrokenPromise(f"compact failed without a reason: {error!r}") from error
        else:
            self.tally.compactions += 1
        finally:
            self.kill(writer)

    def forget(self):
        """There is no run any more: nothing that was saved is to be there."""
        self.possible, self.begun, self.acknowledged_sequence = {()}, 0, 0
        self.kept, self.removed = set(), set()

    def clear(self, writer):
        self.may_nest = False
        was = writer.attempt
        writer.attempt = 10**6
        self.kept, self.removed = set(), set()
        try:
            with self.in_flight(writer, {()}):
                done(writer.store.clear(RUN))
        except RunLockedError:
            writer.attempt = was
            self.kill(writer)
            return
        except CheckpointStorageError as error:
            if not self.is_failing:
                raise BrokenPromise(f"clear failed without a reason: {error!r}") from error
            self.possible |= {()}
        else:
            self.possible = {()}
        # Done or not, the run may start again; all its writers end here, so none of them can come back.
        self.begun = self.acknowledged_sequence = 0
        self.epoch += 1
        for each in list(self.writers):
            self.kill(each)

    def kill(self, writer):
        writer.mount.kill()
        self.processes.live.discard(writer.pid)
        if writer in self.writers:
            self.writers.remove(writer)

    def cut_power(self):
        for writer in list(self.writers):
            self.kill(writer)
        self.disk = self.disk.after_power_cut(self.random, self.random.choice(["nothing", "some", "some"]))
        self.attach()
