"""One random program for every store at once: what one of them answers, all of them answer.

A store that lacks an ability is not asked for it, and one that two owners cannot come to from one process is left out of what
they do to each other: both are said by the store, or where it is opened.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from flowckpt.core.records import Reason, Signal
from flowckpt.core.records.listing import RunFilter
from flowckpt.errors import FlowckptError
from flowckpt.stores.base import Ability
from flowckpt.stores.queries import find_runs
from flowckpt.testing.contract import EXACT, NOON, checkpoint, results
from tests.crash.workload import done

OWN = ("a", "A", "../x")
"""Runs that one owner has at most, of all stores."""

FOUGHT_FOR = "fought for"
"""A run that two owners take from each other."""

RECEIVED = ("copy", "../x")

RUNS = st.sampled_from(OWN)
NAMES = st.sampled_from(["one", "two", "three"])
VALUES = [*(value for value in EXACT if value == value), *["x" * 70_000] * 4]
OUTPUTS = st.integers(0, len(VALUES) - 1)
LARGE = {"x": "y" * 70_000}
SEQUENCES = st.lists(st.integers(1, 6), max_size=3)
BACK = st.sampled_from([0, 0, 1, 9])
EMPTY = st.booleans()
FIELDS = st.fixed_dictionaries(
    {"inputs": st.sampled_from("abc")},
    optional={
        "snapshot": OUTPUTS,
        "output": OUTPUTS,
        "reason": st.sampled_from(Reason),
        "extra": st.just({"later": [1]}),
    },
)
FILTERS = st.builds(
    RunFilter,
    statuses=st.none() | st.lists(st.sampled_from(["running", "crashed", "completed", "failed", "suspended"])),
    workflow=st.sampled_from([None, None, "etl", "other"]),
    tags=st.lists(st.tuples(st.just("t"), st.sampled_from([None, "a", "b"])), max_size=1),
    limit=st.sampled_from([None, None, 1, 2]),
)


@attrs.frozen
class Place:
    """A store, and how a second owner comes to it.

    Attributes:
        name: for messages.
        store: the store.
        other: the same for another owner; None where this process cannot be two.
    """

    name: str
    store: object
    other: object = None

    def close(self):
        for store in (self.store, self.other):
            if hasattr(store, "close"):
                store.close()


class Agreement(RuleBasedStateMachine):
    """Each rule asks all stores the same; what they return, or the class of what they raise, must be equal.

    A subclass says in `opened` which they are; they are empty.
    """

    def opened(self):
        """Yield the places, within a context that ends with the program."""
        raise NotImplementedError

    def __init__(self):
        super().__init__()
        self.ends = contextlib.ExitStack()
        self.places = self.ends.enter_context(contextlib.contextmanager(self.opened)())
        self.histories = {}
        self.leases = {}
        self.fighters = {}
        self.saved = 0

    def teardown(self):
        try:
            for run in (*OWN, RECEIVED[0]):
                self.look_at(run)
                self.look_behind(run)
            self.look_at(FOUGHT_FOR)
            self.look_behind(FOUGHT_FOR)
            self.find(RunFilter())
            self.ask(self.severities, Ability.CHECK)
        finally:
            for place in self.places:
                place.close()
            self.ends.close()

    # --- asking ------------------------------------------------------------------------------------------------------

    def ask(self, question, *abilities, of=None):
        """Ask all stores that have the abilities; return their answer, or None where it is an error."""
        answers = {}
        for place in of or self.places:
            if not all(place.store.has(ability) for ability in abilities):
                continue
            try:
                answers[place.name] = done(question(place.store))
            except FlowckptError as error:
                answers[place.name] = type(error)
        (name, first), *others = answers.items()
        for other, answer in others:
            assert answer == first, f"{other} answers {answer!r}, {name} {first!r}"
        return None if isinstance(first, type) else first

    async def seen(self, store, run):
        """All that can be asked of a run, but sizes of bytes."""
        references = [attrs.evolve(ref, size=0) for ref in await store.list_checkpoints(run)]
        loaded = [await store.load(run, ref.checkpoint_id) for ref in references]
        return references, loaded, await store.load_latest(run)

    async def stands(self, store, run):
        info = await store.describe_run(run)
        owner = await store.owner(run)
        return owner is not None, info and described(info)

    async def left_behind(self, store, run):
        """All that each attempt saved."""
        found = {number: await store.list_attempt(run, number) for number in await store.attempts(run)}
        return [
            (
                number,
                [attrs.evolve(ref, size=0) for ref in references],
                await store.read_attempt(run, number),
                await store.load_attempt(run, number),
            )
            for number, references in found.items()
        ]

    async def kept_of_each(self, store, run):
        return [each for each in await self.left_behind(store, run) if each[1]]

    async def severities(self, store):
        return {finding.severity for finding in await store.check()} - {"ok", "notice"}

    def look_at(self, run):
        of = self.places_of(run)
        self.ask(lambda store: self.seen(store, run), of=of)
        self.ask(lambda store: self.stands(store, run), Ability.OWNERS, Ability.LIST, of=of)
        self.ask(lambda store: store.signals(run), Ability.SIGNALS, of=of)
        self.ask(lambda store: store.pinned(run), Ability.PINS, of=of)

    @rule(run=st.sampled_from([*OWN, FOUGHT_FOR]))
    def look_behind(self, run):
        """What attempts left behind; what was refused of a fenced one is not a part of it."""
        of = self.places_of(run)
        self.ask(lambda store: self.left_behind(store, run), Ability.ATTEMPTS, of=of)

    def places_of(self, run):
        return [place for place in self.places if run != FOUGHT_FOR or place.other is not None]

    # --- owning and saving -------------------------------------------------------------------------------------------

    @initialize(run=RUNS)
    def begin(self, run):
        self.acquire(run, take_over=False)

    @rule(run=RUNS, take_over=st.booleans())
    def acquire(self, run, take_over):
        lease = self.ask(lambda store: taken(store, run, take_over), Ability.OWNERS)
        if lease:
            self.leases[run] = lease[0]
            self.histories[run] = list(lease[1].step_results) if lease[1] else []
        self.look_at(run)

    @rule(
        run=RUNS,
        name=NAMES,
        step=st.sampled_from([1, 1, 1, 2, 0, -1]),
        attempt=st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1, 2]),
        outputs=st.lists(OUTPUTS, max_size=3),
        back=st.sampled_from([0, 0, 0, 1, 2, 9]),
        fields=FIELDS,
        is_broken=st.sampled_from([False] * 9 + [True]),
        evicted=SEQUENCES,
        tag=st.sampled_from("ab"),
        workflow=st.sampled_from(["etl", "etl", "other"]),
    )
    def save(self, run, name, step, attempt, outputs, back, fields, is_broken, evicted, tag, workflow):
        history = self.histories.get(run, [])
        history = history[: max(0, len(history) - back)]
        for field in {"snapshot", "output"} & fields.keys():
            fields[field] = VALUES[fields[field]]
        fields["inputs"] = {"a": {}, "b": {"x": (1,)}, "c": LARGE}[fields["inputs"]]
        outputs = [VALUES[index] for index in outputs]
        history = [*history, *results(*outputs, *([object()] if is_broken else []), first=len(history) + 1)]
        fields |= {"workflow_name": workflow, "metadata": {"tags": {"t": tag}}, **self.moment()}
        number = self.leases.get(run, 1) + attempt

        async def question(store):
            references = await store.list_checkpoints(run)
            sequence = max((ref.sequence for ref in references), default=0) + step
            store.evict_with_next_save(run, evicted)
            await store.save(run, checkpoint(sequence, list(history), checkpoint_id=name, attempt=number, **fields))
            return True

        if self.ask(question):
            self.histories[run] = history
            self.leases[run] = number
        self.look_at(run)

    def moment(self):
        """When a checkpoint was saved: no two at once, so that lists have one order."""
        self.saved += 1
        return {"saved_at": NOON + timedelta(seconds=self.saved)}

    @rule(run=RUNS)
    def release(self, run):
        self.ask(lambda store: store.release(run), Ability.OWNERS)

    @rule(run=RUNS)
    def clear(self, run):
        self.ask(lambda store: store.clear(run))
        self.leases.pop(run, None)
        self.histories.pop(run, None)
        self.look_at(run)

    # --- two owners --------------------------------------------------------------------------------------------------

    @rule(is_other=st.booleans(), take_over=st.booleans(), back=st.sampled_from([0, 0, 1, 9]), goes_on=st.booleans())
    def take(self, is_other, take_over, back, goes_on):
        """One of two owners takes the run, or is refused; the one that took it saves, as the engine does at once."""
        lease = self.fight(is_other, lambda store: taken(store, FOUGHT_FOR, take_over))
        if lease:
            history = list(lease[1].step_results) if lease[1] else []
            self.fighters[is_other] = (*lease, history[: max(0, len(history) - back)])
            self.fight_on(is_other)
            if not goes_on:  # the process that it took the run from need not know it
                self.fight(is_other, lambda store: store.release(FOUGHT_FOR))
                self.look_at(FOUGHT_FOR)

    @rule(is_other=st.booleans())
    def fight_on(self, is_other):
        """An owner, or one that was, saves: nothing of a former owner is ever taken for saved."""
        if is_other not in self.fighters:
            return
        attempt, latest, last, history = self.fighters[is_other]
        data = checkpoint(
            last + 1, [*history, *results(attempt, first=len(history) + 1)], attempt=attempt, **self.moment()
        )

        async def question(store):
            await store.save(FOUGHT_FOR, data)
            return True

        if self.fight(is_other, question):
            self.fighters[is_other] = (attempt, data, last + 1, data.step_results)
        self.look_at(FOUGHT_FOR)

    @rule(is_other=st.booleans(), sequences=SEQUENCES)
    def fight_to_delete(self, is_other, sequences):
        """An owner, or one that was, removes checkpoints; nothing of a former owner is ever taken for removed."""
        if is_other in self.fighters:
            self.fight(is_other, lambda store: store.delete_sequences(FOUGHT_FOR, sequences))
            self.look_at(FOUGHT_FOR)

    def fight(self, is_other, question):
        of = [
            Place(place.name, place.other if is_other else place.store)
            for place in self.places
            if place.other is not None
        ]
        return self.ask(question, Ability.OWNERS, of=of)

    # --- single checkpoints ------------------------------------------------------------------------------------------

    @rule(run=RUNS, name=NAMES)
    def delete(self, run, name):
        self.ask(lambda store: store.delete_checkpoint(run, name), Ability.DELETE)
        self.look_at(run)

    @rule(run=RUNS, sequences=SEQUENCES)
    def delete_sequences(self, run, sequences):
        self.ask(lambda store: store.delete_sequences(run, sequences))
        self.look_at(run)

    @rule(run=RUNS, name=NAMES)
    def load(self, run, name):
        self.ask(lambda store: store.load(run, name))

    @rule(
        run=RUNS,
        attempt=st.none() | st.integers(1, 3),
        reason=st.none() | st.sampled_from(["step", "started", "failed"]),
        limit=st.none() | st.integers(0, 2),
    )
    def pick(self, run, attempt, reason, limit):
        async def question(store):
            found = await store.list_checkpoints(run, attempt=attempt, reason=reason, limit=limit)
            return [ref.sequence for ref in found], await store.load_latest(run, attempt=attempt)

        self.ask(question)

    @rule(run=RUNS, sequence=st.integers(1, 6), is_unpinned=st.booleans())
    def pin(self, run, sequence, is_unpinned):
        if is_unpinned:
            self.ask(lambda store: store.unpin(run, sequence), Ability.PINS)
        else:
            self.ask(lambda store: store.pin(run, sequence), Ability.PINS)

    @rule(run=RUNS, is_forced=st.booleans(), rounds=st.lists(st.tuples(BACK, EMPTY, SEQUENCES), min_size=1, max_size=3))
    def compact(self, run, is_forced, rounds):
        """Compact a run, and continue with it: numbers of later attempts differ, as a compaction of files takes some."""

        async def question(store):
            await store.compact(run, is_forced=is_forced)

        self.ask(question, Ability.COMPACT)
        self.look_at(run)
        looking = Ability.ATTEMPTS
        self.ask(lambda store: self.kept_of_each(store, run), looking)
        moments = [self.moment() for _ in rounds]

        async def going_on(store):
            later, seen = [], []
            for (back, is_empty, sequences), moment in zip(rounds, moments, strict=True):
                number, latest, last = await taken(store, run, take_over=True)
                later.append(number)
                history = list(latest.step_results) if latest else []
                history = history[: max(0, len(history) - back)]
                added = [] if is_empty else results("later", first=len(history) + 1)
                await store.save(run, checkpoint(last + 1, [*history, *added], attempt=number, **moment))
                await store.release(run)
                seen += [last, await self.kept_by(store, run, later)]
                await store.delete_sequences(run, [last + 2 - each for each in sequences])
                seen.append(await self.kept_by(store, run, later))
                await store.compact(run, is_forced=True)
                seen.append(await self.kept_by(store, run, later))
            return seen

        self.ask(going_on, Ability.COMPACT, Ability.OWNERS, looking)
        self.clear(run)

    async def kept_by(self, store, run, later):
        """What is left of each attempt; those of `later` are told by their place in it."""

        def told(each):
            return attrs.evolve(each, attempt=-later.index(each.attempt) if each.attempt in later else each.attempt)

        left = {number: await store.list_attempt(run, number) for number in await store.attempts(run)}
        return [
            (
                [told(attrs.evolve(ref, size=0)) for ref in references],
                [told(data) for data in await store.read_attempt(run, number)],
            )
            for number, references in left.items()
            if references
        ]

    # --- many runs ---------------------------------------------------------------------------------------------------

    @rule(wanted=FILTERS)
    def find(self, wanted):
        """Find runs; at most so many only in stores that have them all."""
        describe = all_described if wanted.limit is None else lambda infos: list(map(described, infos))

        async def question(store):
            survey = await store.survey_runs(wanted)
            found = describe(await find_runs(store, wanted))
            assert found == describe(survey.runs)
            return found, list(survey.unreadable)

        of = [place for place in self.places if wanted.limit is None or place.other is not None]
        self.ask(question, Ability.LIST, of=of)

    @rule(limit=st.integers(1, 3), run=RUNS)
    def prune(self, limit, run):
        """Go through the runs page by page, and remove one that has no owner and no pin."""

        async def question(store):
            found = []
            while page := await store.page_runs(found[-1] if found else None, limit):
                found += page
            assert len({info.workflow_id for info in found}) == len(found)
            gone = await store.clear_unchanged([info for info in found if info.workflow_id == run])
            return all_described(found), list(gone)

        answer = self.ask(question, Ability.PRUNE)
        if answer and answer[1]:
            self.ask(lambda store: store.clear(run))
            self.leases.pop(run, None)
            self.histories.pop(run, None)
        self.look_at(run)

    # --- messages, and runs that arrive ------------------------------------------------------------------------------

    @rule(run=RUNS, name=st.sampled_from(["m1", "m2", "../m"]), data=OUTPUTS)
    def send(self, run, name, data):
        """Send one, also to a run whose checkpoints were all removed."""
        message = Signal(name, "go", NOON, VALUES[data], "ann")
        self.ask(lambda store: store.send_signal(run, message), Ability.SIGNALS)

    @rule(run=RUNS, names=st.lists(st.sampled_from(["m1", "m2", "../m"]), max_size=2))
    def receive_messages(self, run, names):
        self.ask(lambda store: store.signals(run), Ability.SIGNALS)
        self.ask(lambda store: store.remove_signals(run, names), Ability.SIGNALS)

    @rule(run=RUNS, arriving=st.sampled_from(RECEIVED), breaks_at=st.sampled_from([None, None, 0, 1]))
    def receive(self, run, arriving, breaks_at):
        """A run arrives with all its attempts, or, where the source fails on the way, not at all."""
        self.saved += 1
        later = timedelta(microseconds=self.saved)  # so that no two runs were started at once

        async def question(store):
            whole = [data for number in await store.attempts(run) for data in await store.read_attempt(run, number)]

            if not whole:
                return None

            def checkpoints():
                for number, data in enumerate(whole):
                    if number == breaks_at:
                        raise BrokenSource("the source broke")
                    yield attrs.evolve(data, saved_at=data.saved_at + later)

            await store.receive_run(arriving, checkpoints)
            return True

        self.ask(question, Ability.RECEIVE, Ability.ATTEMPTS)
        self.look_at(arriving)


class BrokenSource(FlowckptError):
    """What is copied cannot be read on."""


async def taken(store, run, take_over):
    lease = await store.acquire(run, take_over=take_over)
    return lease.attempt, lease.latest, lease.last_sequence


def described(info):
    """What a list says of a run, but who the owner is."""
    return attrs.evolve(info, owner=None), info.owner is not None


def all_described(infos):
    """The same of many, in their order, but for the run that some stores are not asked for."""
    return [described(info) for info in infos if info.workflow_id != FOUGHT_FOR]
