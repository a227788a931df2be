"""What is kept for each function is forgotten with it, and so is what the function holds."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from timeit import repeat
from typing import Any

import pytest

from flowckpt import MemoryCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.core.codec.annotations import return_annotation
from flowckpt.core.dsl.step import function_name
from flowckpt.core.identity.call import digest_arguments
from flowckpt.core.identity.fingerprint import step_fingerprint
from flowckpt.core.system import functions
from flowckpt.core.system.functions import per_pair


@pytest.fixture(autouse=True, scope="module")
def nothing_else():
    """Let the collections below look at what these tests make, and not again and again at what the others left."""
    gc.collect()
    gc.freeze()


class Batch:
    """A large value."""


def made(batch):
    def work(x=0):
        return batch

    return work


def counting():
    """A cache, and the values that it computed."""
    computed: list[Any] = []

    @functions.cached_per_function
    def value_of(function):
        computed.append(id(function))
        return len(computed)

    return value_of, computed


# --- the cache -------------------------------------------------------------------------------------------------------


def test_a_value_is_computed_once_for_each_function():
    value_of, computed = counting()
    one, two = made(1), made(2)
    assert [value_of(each) for each in (one, two, one, two)] == [1, 2, 1, 2]
    assert computed == [id(one), id(two)]


def test_a_function_is_not_kept_and_its_successor_at_the_same_address_gets_its_own_value():
    value_of = functions.cached_per_function(lambda function: function())
    seen = set()
    for number in range(2000):
        function = made(number)
        assert value_of(function) == number == value_of(function)
        seen.add(id(function))
        del function
    assert len(seen) < 2000, "no address was used twice: this proves nothing"


def test_a_reference_that_is_cleared_late_does_not_forget_the_next_function():
    """A collector clears weak references before it calls their callbacks; meanwhile the address may be taken again."""
    value_of, computed = counting()
    entries = [cell.cell_contents for cell in value_of.__closure__ if isinstance(cell.cell_contents, dict)]
    (known,) = entries
    function = made(1)
    value_of(function)
    old = known[id(function)]
    forget = old.__callback__
    known.clear()
    value_of(function)
    forget(old)
    value_of(function)
    assert len(computed) == 2


class Equal:
    """Equal to all its like, and not to be hashed."""

    __hash__ = None

    def __eq__(self, other):
        return True

    def __call__(self): ...


class Bare:
    __slots__ = ()

    def __call__(self): ...


def test_identity_counts_and_what_cannot_be_hashed_is_known_too():
    value_of, computed = counting()
    one, two = Equal(), Equal()
    assert [value_of(each) for each in (one, two, one)] == [1, 2, 1]


def test_what_cannot_be_referred_to_weakly_is_computed_each_time():
    value_of, computed = counting()
    bare = Bare()
    assert [value_of(bare), value_of(bare)] == [1, 2]


def test_a_failure_is_not_kept():
    answers = iter([ZeroDivisionError, None])

    @functions.cached_per_function
    def value_of(function):
        if (error := next(answers)) is not None:
            raise error
        return "value"

    with pytest.raises(ZeroDivisionError):
        value_of(made)
    assert value_of(made) == "value" == value_of(made)


def test_it_knows_no_more_than_a_few_thousand(monkeypatch):
    monkeypatch.setattr(functions, "MAX_KNOWN", 10)
    value_of, computed = counting()
    alive = [made(number) for number in range(25)]
    for function in alive:
        value_of(function)
    (known,) = (cell.cell_contents for cell in value_of.__closure__ if isinstance(cell.cell_contents, dict))
    assert len(known) <= 10
    assert value_of(alive[-1]) == 25


def test_a_pair_is_known_as_long_as_both_live():
    calls = []
    value_of = per_pair(lambda function, owner: calls.append(1) or f"{function.__qualname__} of {owner.__name__}")

    class Base:
        def work(self): ...

    class Sub(Base): ...

    for _ in range(2):
        assert value_of(Base.work, Base).endswith("Base.work of Base")
        assert value_of(Base.work, Sub).endswith("Base.work of Sub")
    assert len(calls) == 2
    gone = [weakref.ref(Base), weakref.ref(Base.work), weakref.ref(Sub)]
    del Base, Sub
    gc.collect()
    assert [each() for each in gone] == [None, None, None]


def test_threads_get_right_answers(monkeypatch):
    monkeypatch.setattr(functions, "MAX_KNOWN", 50)
    value_of = functions.cached_per_function(lambda function: function())
    shared = [made(number) for number in range(100)]

    def hammer(seed):
        for number in range(3000):
            index = (seed * 7 + number) % len(shared)
            if value_of(shared[index]) != index or value_of(made(number)) != number:
                return False
        return True

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(hammer, range(8)))
    finally:
        sys.setswitchinterval(interval)


def test_a_lookup_is_quick():
    value_of, _ = counting()
    known = functools.lru_cache(lambda function: 1)
    ours, theirs = (
        min(repeat("look(made)", globals={"look": look, "made": made}, number=20_000, repeat=15))
        for look in (value_of, known)
    )
    assert ours < 8 * theirs  # about twice as long; a machine under load must not fail it


# --- what uses it ----------------------------------------------------------------------------------------------------


def traced(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


def closure(batch):
    return made(batch)


def annotated_by_name(batch):
    def work(x=0) -> Batch:
        return batch

    return work


def wrapped(batch):
    return traced(made(batch))


def partial(batch):
    return functools.partial(made(None), batch)


def partial_of_closure(batch):
    return functools.partial(made(batch), 1)


def cached(batch):
    return functools.cache(made(batch))


def bound(batch):
    class Loader:
        def work(self):
            return self.batch

    loader = Loader()
    loader.batch = batch
    return loader.work


def callable_object(batch):
    class Loader:
        def __call__(self):
            return self.batch

    loader = Loader()
    loader.batch = batch
    return loader


def unhashable(batch):
    found = Equal()
    found.batch = batch
    return found


def local_class(batch):
    class Loader:
        def held(self):
            return batch

    return Loader


def annotated_by_a_class_that_knows_it(batch):
    class Loader: ...

    def work(x=0):
        return batch

    work.__annotations__["return"] = Loader
    Loader.work = staticmethod(work)
    return work


def annotated_by_what_is_awaited(batch):
    class Loader: ...

    def work(x=0):
        return batch

    work.__annotations__["return"] = Awaitable[Loader]
    Loader.work = staticmethod(work)
    return work


KINDS = [
    closure,
    annotated_by_name,
    wrapped,
    partial,
    partial_of_closure,
    cached,
    bound,
    callable_object,
    unhashable,
    local_class,
    annotated_by_a_class_that_knows_it,
    annotated_by_what_is_awaited,
]
CACHES = {
    "the fingerprint": step_fingerprint,
    "the return annotation": return_annotation,
    "the name": function_name,
    "the names of the arguments": lambda function: digest_arguments(function, (1,), {}),
}


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_a_function_holds_is_freed_with_it(kind, cache):
    look, gone = CACHES[cache], []
    for _ in range(5):
        batch = Batch()
        function = kind(batch)
        assert look(function) == look(function)
        gone.append(weakref.ref(batch))
        del batch, function
    gc.collect()
    assert [each() for each in gone] == [None] * 5


async def test_a_run_leaves_nothing_alive_that_its_steps_held():
    gone = []

    @workflow("batches")
    def batches():
        total = 0
        for number in range(20):
            batch = Batch()
            gone.append(weakref.ref(batch))

            def work(x: int, batch=batch) -> int:
                return x + bool(held) + bool(batch)

            held = batch
            total += yield step("work").python(work, number).checkpoint()
        return total

    result = await WorkflowEngine(MemoryCheckpointStore()).run(batches)
    assert result.unwrap() == sum(range(20)) + 40
    gc.collect()
    assert [each() for each in gone] == [None] * 20


def test_values_by_reference_are_computed_once_and_forgotten_with_their_function():
    computed: list[Any] = []
    known = functions.PerFunction(lambda function: computed.append(function()) or function())
    one, two = made(1), made(2)
    assert [known[weakref.ref(each)] for each in (one, two, one, two)] == [1, 2, 1, 2]
    assert computed == [1, 2]
    del one
    gc.collect()
    assert list(known.values()) == [2]
    functions.forget_functions()
    assert known[weakref.ref(two)] == 2
    assert computed == [1, 2, 2]
    for number in range(2000):
        function = made(number)
        assert known[weakref.ref(function)] == number
    assert len(known) == 2
