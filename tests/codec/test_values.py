"""What goes in comes out: values without an annotation."""

from __future__ import annotations

import collections
import contextlib
import copy
import enum
import json
import sqlite3
import sys
import typing
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import Path, PurePosixPath

import pytest
from closed_set import SCALARS, same, values
from hypothesis import given, settings
from hypothesis import strategies as st

from flowckpt import CheckpointData, MemoryCheckpointStore, StepResult
from flowckpt.core.codec import decode, dumps, encode, register_type
from flowckpt.core.codec.results import append_result, decode_result
from flowckpt.core.codec.tags import MAX_DEPTH
from flowckpt.core.identity.inputs_hash import canonical
from flowckpt.core.records import History
from flowckpt.errors import DecodingError, EncodingError, FlowckptError


def through_json(value):
    return decode(json.loads(dumps(encode(value)).encode(), parse_constant=refuse_constant))


def refuse_constant(name):
    raise AssertionError(f"{name} is not JSON")


@given(values)
@settings(max_examples=200, deadline=None)
def test_every_value_of_the_closed_set_comes_back_the_same_in_value_and_in_type(value):
    assert same(value, through_json(value))


@given(values)
@settings(deadline=None)
def test_the_same_value_is_always_written_the_same_and_in_a_fixed_point(value):
    first = dumps(encode(value))
    assert dumps(encode(value)) == first
    assert canonical(encode(through_json(value))) == canonical(encode(value))


@pytest.mark.parametrize("cls", SCALARS, ids=lambda cls: cls.__name__)
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_each_type_comes_back_the_same_alone_as_an_item_and_as_a_key(cls, data):
    value = data.draw(SCALARS[cls])
    assert type(value) is cls
    for whole in (value, [value], (value,), {"k": value}, {value: 1}, {value}, frozenset({value})):
        assert same(whole, through_json(whole))


@given(st.lists(st.one_of(st.integers(), st.text(), st.tuples(st.integers(), st.text())), unique=True))
def test_sets_are_written_alike_in_whatever_order_they_were_filled(items):
    forwards, backwards = set(items), set()
    for item in reversed(items):
        backwards.add(item)
    assert dumps(encode(forwards)) == dumps(encode(backwards))
    assert dumps(encode(frozenset(forwards))) == dumps(encode(frozenset(backwards)))


@given(st.dictionaries(st.one_of(st.integers(), st.text()), st.integers()), st.randoms())
def test_the_canonical_form_of_a_dict_does_not_depend_on_its_order(filled, random):
    pairs = list(filled.items())
    random.shuffle(pairs)
    assert canonical(encode(dict(pairs))) == canonical(encode(filled))


def test_two_nans_stay_two():
    two_keys = {float("nan"): 1, float("nan"): 2}
    assert len(through_json(two_keys)) == 2
    assert len(through_json({float("nan"), float("nan")})) == 2


def test_an_integer_of_more_digits_than_python_writes_in_decimal_comes_back():
    huge = 10**5000
    assert through_json({huge: [-huge]}) == {huge: [-huge]}
    with pytest.raises(EncodingError, match="object"):
        encode({huge: {huge: object()}})


def test_a_decoded_value_shares_nothing_with_its_tree_or_its_original():
    original = {"rows": [[1], {2}], "d": {3: [4]}}
    tree = encode(original)
    kept = copy.deepcopy(tree)
    decoded = decode(tree)
    decoded["rows"][0].append("new")
    decoded["d"][3].append("new")
    original["rows"][0].append("other")
    assert tree == kept
    assert decode(tree) == {"rows": [[1], {2}], "d": {3: [4]}}


# --- what is refused -------------------------------------------------------------------------------------------------


class Text(str):
    pass


class Number(int):
    """Like numpy's: a number that is not an int."""


class Real(float):
    pass


class Level(enum.IntEnum):
    LOW = 1


class Name(enum.StrEnum):
    A = "a"


class Moment(datetime):
    pass


class Amount(Decimal):
    pass


class Zone(tzinfo):
    def utcoffset(self, dt):
        return timedelta(0)


class Pair(typing.NamedTuple):
    a: int
    b: int


REFUSED = [
    Text("x"),
    Number(1),
    Real(1.0),
    Level.LOW,
    Name.A,
    Pair(1, 2),
    collections.OrderedDict(a=1),
    collections.defaultdict(list),
    collections.Counter("a"),
    collections.deque(),
    Moment(2020, 1, 1),
    Amount(1),
    datetime(2020, 1, 1, tzinfo=Zone()),
    datetime(2020, 1, 1, tzinfo=timezone(timedelta(0), Text("UTC"))),
    datetime(2020, 1, 1, tzinfo=timezone(timedelta(0), "\ud800")),
    PurePosixPath("a"),
    bytearray(b"a"),
    memoryview(b"a"),
    range(3),
    slice(1),
    object(),
    int,
    len,
    json,
    lambda: 1,
    ValueError("x"),
    (x for x in ()),
    Ellipsis,
    NotImplemented,
    {}.keys(),
]


def is_hashable(value):
    try:
        hash(value)
    except TypeError:
        return False
    return True


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_anything_else_is_refused_at_its_place_wherever_it_lies(value):
    wrapped = {
        "output": value,
        "output[1]": [0, value],
        "output[0][2]": ((1, 2, value),),
        "output.rows[3].conn": {"rows": [0, 1, 2, {"conn": value}]},
        "output['no identifier']": {"no identifier": value},
        "output[7]": {7: value},
        "output['$x']": {"$x": value},
    }
    if is_hashable(value):
        wrapped |= {
            "output{…}": {value, 1},
            "output.found{…}[0]": {"found": frozenset({(value,)})},
            f"key {value!r:.60} of output.m": {"m": {value: 1}},
        }
    for place, whole in wrapped.items():
        with pytest.raises(EncodingError) as caught:
            encode(whole, place="output")
        assert caught.value.place == place
        assert caught.value.type_name.endswith(type(value).__qualname__)
        assert str(caught.value).startswith(place)
        assert "register" in caught.value.remedy or ".workflow(child)" in caught.value.remedy
        assert ".ephemeral()" in caught.value.remedy


def test_the_first_of_many_refused_things_is_named_and_the_good_ones_before_it_are_not():
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        rows = [1, "a", None, {"id": 1, "conn": connection}, object()]
        with pytest.raises(EncodingError, match=r"^fetch: output.rows\[3\].conn is a sqlite3.Connection"):
            encode({"rows": rows}, place="fetch: output")


def test_a_key_whose_repr_fails_still_gets_a_proper_refusal():
    class Hostile:
        def __repr__(self):
            raise RuntimeError("no repr")

    with pytest.raises(EncodingError, match="Hostile"):
        encode({Hostile(): 1})


@given(values, st.sampled_from(range(len(REFUSED))))
@settings(deadline=None, max_examples=50)
def test_a_refused_value_among_good_ones_is_always_found(value, index):
    with pytest.raises(EncodingError) as caught:
        encode([value, {"k": (value, REFUSED[index])}])
    assert caught.value.place == "value[1].k[1]"


# --- depth -----------------------------------------------------------------------------------------------------------

NESTINGS = {
    "list": lambda inner: [inner],
    "tuple": lambda inner: (inner,),
    "dict": lambda inner: {"k": inner},
    "int keys": lambda inner: {1: inner},
    "frozenset": lambda inner: frozenset({inner}),
    "tuple keys": lambda inner: {1: (inner,)},
}


def nested(name, depth):
    value = "end"
    for _ in range(depth // 2 if name == "tuple keys" else depth):
        value = NESTINGS[name](value)
    return value


@pytest.mark.parametrize("name", NESTINGS)
def test_a_value_may_be_a_hundred_deep_and_not_deeper(name):
    assert MAX_DEPTH == 100
    deepest = nested(name, 100)
    assert through_json(deepest) == deepest
    with pytest.raises(EncodingError, match="nested more than 100 deep, or contains itself") as caught:
        encode([deepest], place="output")
    assert caught.value.place == "output"


def on_a_deep_stack(work, left):
    """Run `work` with only so many frames left."""
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back

    def descend(n):
        return work() if n <= 0 else descend(n - 1)

    return descend(sys.getrecursionlimit() - depth - left)


@pytest.mark.parametrize("name", NESTINGS)
def test_a_hundred_levels_are_written_and_read_from_a_stack_that_is_nearly_used_up(name):
    deepest = nested(name, 100)
    text = dumps(encode(deepest))
    tree = json.loads(text)
    assert on_a_deep_stack(lambda: dumps(encode(deepest)), left=90) == text
    assert on_a_deep_stack(lambda: decode(tree), left=90) == deepest
    with pytest.raises(EncodingError, match=r"Connection|object"):
        on_a_deep_stack(lambda: encode([deepest, nested(name, 90), object()][1:]), left=90)


@pytest.mark.parametrize(
    "build", [lambda a: a.append(a), lambda a: a.extend([a, a]), lambda a: a.append({"x": (a, a)})]
)
def test_a_value_that_contains_itself_is_refused_quickly(build):
    value = []
    build(value)
    with pytest.raises(EncodingError, match="contains itself"):
        encode(value)


def test_what_is_refused_inside_a_value_that_contains_itself_is_still_named():
    value = [object()]
    value += [value, value]
    with pytest.raises(EncodingError, match=r"value\[0\] is a object"):
        encode(value)


def test_a_tree_that_is_too_deep_for_any_stack_is_a_decoding_error():
    tree = []
    for _ in range(20_000):
        tree = [tree]
    with pytest.raises(DecodingError, match="nested too deep"):
        decode(tree)


# --- hostile bytes ---------------------------------------------------------------------------------------------------

TAGS = (
    "$int", "$float", "$str", "$dict", "$tuple", "$set", "$frozenset", "$bytes", "$complex", "$date", "$time",
    "$datetime", "$timedelta", "$path", "$decimal", "$fraction", "$uuid", "$as", "$zone", "$blob", "$", "$new",
)  # fmt: skip
json_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(
        ["nan", "0x", "2020-01-01", "2020-01-01T00:00:00+01:00", "../../etc/passwd", "Europe", "/etc", "a\0b", "UTC",
         "Europe/Berlin", "AAAA", "====", "1e999999999999999999", "sNaN", "os:system", "posix.system", "\ud800"]
    ),
)  # fmt: skip
hostile_trees = st.recursive(
    json_leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=4), inner, max_size=3),
        st.builds(lambda tag, body: {tag: body}, st.sampled_from(TAGS), inner),
        st.builds(lambda tag, body: {tag: body}, st.sampled_from(TAGS), st.lists(inner, max_size=3)),
        st.builds(lambda a, b: {a: [["2020-01-01T00:00:00"], 0, b]}, st.sampled_from(["$datetime", "$time"]), inner),
        st.builds(lambda b: {"$datetime": ["2020-01-01T00:00:00", 0, b]}, inner),
    ),
    max_leaves=8,
)


@given(hostile_trees)
@settings(max_examples=500, deadline=None)
def test_a_hostile_tree_is_read_or_refused_with_a_decoding_error_and_nothing_else(tree):
    with contextlib.suppress(DecodingError):
        decode(tree, place="output")


MALFORMED = [
    {"$int": "zz"}, {"$int": None}, {"$int": [1]}, {"$float": "1.5"}, {"$float": []}, {"$str": "%"}, {"$str": 5},
    {"$dict": [[1]]}, {"$dict": [[[], 1]]}, {"$dict": 5}, {"$tuple": 5}, {"$set": [[]]}, {"$bytes": "é"},
    {"$complex": [1, 2, 3]}, {"$complex": ["a"]}, {"$date": "x"}, {"$date": 5}, {"$time": "25:00"},
    {"$datetime": ["2020-01-01", 5, None]}, {"$datetime": ["2020-01-01", 0, "No/Where"]},
    {"$datetime": ["2020-01-01", 0, [[0, 10**9, 0]]]}, {"$datetime": ["2020-01-01", 0, [["a"]]]},
    {"$datetime": ["2020-01-01", 0, {}]}, {"$datetime": ["2020-01-01", 0, 7]}, {"$timedelta": [10**20]},
    {"$path": []}, {"$path": 1}, {"$decimal": "x"}, {"$decimal": []}, {"$fraction": ["0x1", "0x0"]}, {"$fraction": 1},
    {"$uuid": "x"}, {"$uuid": 5}, {"$as": 5}, {"$as": ["a"]}, {"$as": [[], 1]}, {"$unknown": 1}, {"$": 1},
]  # fmt: skip


@pytest.mark.parametrize("tree", MALFORMED, ids=json.dumps)
def test_a_malformed_or_unknown_tag_is_refused(tree):
    for whole in (tree, [1, tree], {"a": {"b": tree}}, {"$tuple": [tree]}):
        with pytest.raises(DecodingError) as caught:
            decode(whole)
        assert isinstance(caught.value, FlowckptError)


def test_decoding_imports_nothing_that_the_bytes_name():
    for warm in (Decimal(1), datetime(2020, 1, 1, tzinfo=UTC)):
        through_json(warm)
    names = ["antigravity", "this", "turtledemo", "idlelib.idle", "lib2to3.pgen2", "nntplib"]
    assert not any(name in sys.modules for name in names)
    before = set(sys.modules)
    for name in names:
        for tree in (
            {"$as": [name, {}]},
            {"$as": [f"{name}:main", []]},
            {"$as": [f"{name}.main", None]},
            {f"${name}": 1},
            {"py/object": f"{name}.X"},
            {"__class__": name, "$type": name},
            {"$datetime": ["2020-01-01T00:00:00", 0, name]},
        ):
            with contextlib.suppress(DecodingError):
                decode(tree)
    assert not {found for found in set(sys.modules) - before if not found.startswith("tzdata")}


def test_a_registered_type_that_this_program_does_not_know_is_refused_with_the_remedy():
    with pytest.raises(DecodingError, match="posix.system") as caught:
        decode({"$as": ["posix.system", "true"]})
    assert "register" in caught.value.remedy


def test_a_registered_type_whose_reading_half_fails_is_a_decoding_error():
    class Fragile:
        pass

    def build(plain):
        raise AssertionError("not like this")

    register_type(Fragile, name="tests.Fragile", to_plain=lambda value: 1, from_plain=build)
    with pytest.raises(DecodingError, match="tests.Fragile cannot be built again: AssertionError: not like this"):
        decode(encode(Fragile()))


def test_a_registered_type_whose_writing_half_fails_is_an_encoding_error_at_its_place():
    class Closed:
        pass

    def apart(value):
        raise OSError("gone")

    register_type(Closed, name="tests.Closed", to_plain=apart, from_plain=lambda plain: Closed())
    with pytest.raises(EncodingError, match=r"value.x\[0\] is a .*Closed.* taking it apart raised OSError: gone"):
        encode({"x": [Closed()]})


# --- pitfalls --------------------------------------------------------------------------------------------------------


def test_pitfall_1_nested_outputs_keep_their_types_after_a_resume():
    output = {"rows": [1, 2], "t": (1, (2,)), 3: b"\xff", "s": {1}, "nan": float("nan"), "inf": [float("-inf")]}
    history = History()
    append_result(history, StepResult("fetch", output=output))
    text = history.encoded[0].decode()
    found, _ = decode_result(json.loads(text, parse_constant=refuse_constant))
    assert same(found.output, output)
    assert "'" not in text  # the mark of a repr


def test_pitfall_2_an_object_has_its_methods_before_and_after_a_resume():
    class Money:
        def __init__(self, cents):
            self.cents = cents

        def shown(self):
            return f"{self.cents / 100:.2f}"

    register_type(Money, name="tests.Money", to_plain=lambda value: value.cents, from_plain=Money)
    history = History()
    append_result(history, StepResult("pay", output=[Money(150)]))
    found, _ = decode_result(json.loads(history.encoded[0]))
    assert found.output[0].shown() == "1.50"
    assert history.results[0].output[0].shown() == "1.50"


async def test_pitfall_3_the_memory_store_shares_nothing_and_refuses_what_the_file_store_would():
    store, snapshot = MemoryCheckpointStore(), {"rows": [[1]]}

    def data(sequence, state):
        return CheckpointData("c", "w", "h", [], datetime(2026, 1, 1, tzinfo=UTC), sequence=sequence, snapshot=state)

    await store.save("run", data(1, snapshot))
    snapshot["rows"][0].append("later")
    loaded = await store.load("run", "c")
    assert loaded.snapshot == {"rows": [[1]]}
    loaded.snapshot["rows"][0].append("elsewhere")
    assert (await store.load_latest("run")).snapshot == {"rows": [[1]]}
    with pytest.raises(EncodingError, match="snapshot.conn"):
        await store.save("run", data(2, {"conn": object()}))


def test_pitfall_4_nothing_of_the_package_can_run_code_out_of_stored_bytes():
    import ast

    import flowckpt

    package = Path(flowckpt.__file__).parent
    modules, calls = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}, {"eval", "exec", "__import__"}
    forbidden = modules | calls
    # What goes from the engine to its workers and back is never stored; it is of our own making, or plain data.
    sends = (package / "execution" / "executors", package / "execution" / "remote")
    for file in package.rglob("*.py"):
        if any(folder in file.parents for folder in sends) or file.name == "otel.py":
            continue
        text = file.read_text("utf-8")
        if not any(word in text for word in forbidden):  # most have none of the words, and are not worth a parse
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not modules & set(names), file
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in calls, f"{file}:{node.lineno}"
