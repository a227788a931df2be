"""The digest of a run's inputs: what it covers, and what it says when they differ."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowckpt import workflow
from flowckpt.core.codec import encode
from flowckpt.core.identity.fingerprint import fingerprint
from flowckpt.core.identity.inputs_hash import MISSING, canonical, differences, digest, leaves
from flowckpt.engine.values.inputs import bind_inputs, rebind_inputs
from flowckpt.errors import InputMismatchError
from tests.fingerprints import fingerprint_of_source
from tests.stable_ids import stable

SAMPLE = {
    "source": Path("orders.csv"),
    "limit": 1000,
    "options": {"ratio": 0.1, "names": {"b", "a", "c"}, 2: (None, True), "ä": "😀"},
    "since": datetime(2026, 11, 20, tzinfo=UTC),
}


def hash_of(value):
    return digest(encode(value))


# --- golden: a digest that changes makes every recorded run's inputs look changed ------------------------------------

GOLDEN = {
    "null": (None, b"null"),
    "numbers": ([1, 1.0, -0.0, 1e16, 1e-7, 2**53 + 1, 2**70], b'[1,1.0,-0.0,1e+16,1e-07,9007199254740993,{"$int":"0x400000000000000000"}]'),
    "keys": ({"b": 1, "a": [True, None]}, b'{"a":[true,null],"b":1}'),
    "text": ("é\u2028\"\\\n\x7f", '"é\u2028\\"\\\\\\n\x7f"'.encode()),
    "other keys": ({10: "x", 9: "y", "a": 1}, b'{"$dict":[["a",1],[10,"x"],[9,"y"]]}'),
    "set": ({10, 9, "a"}, b'{"$set":["a",10,9]}'),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_the_canonical_form_is_fixed(name):
    value, text = GOLDEN[name]
    assert canonical(encode(value)) == text


def test_the_digests_are_fixed():
    assert hash_of({}) == "sha256:v1:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert hash_of(SAMPLE) == "sha256:v1:3685ad7e49243d8e09caf76ee7ff7e355100625972a82fb33651e7e7a2016216"


def test_a_digest_has_all_its_256_bits_and_the_name_of_its_form():
    assert re.fullmatch(r"sha256:v1:[0-9a-f]{64}", hash_of(SAMPLE))


@pytest.mark.parametrize("seed", ["0", "1", "4242", "random"])
def test_the_digest_is_the_same_in_every_process(seed):
    program = (
        "from datetime import UTC, datetime; from pathlib import Path\n"
        "from flowckpt.core.codec import encode; from flowckpt.core.identity.inputs_hash import digest\n"
        f"SAMPLE = {SAMPLE!r}".replace("PosixPath", "Path")
        .replace("datetime.datetime", "datetime")
        .replace("datetime.timezone.utc", "UTC")
        + "\nprint(digest(encode(SAMPLE)), hash('a'))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split()[0] == hash_of(SAMPLE)


@given(st.dictionaries(st.text() | st.integers() | st.booleans(), st.integers() | st.text(), max_size=6), st.randoms())
@settings(max_examples=60, deadline=None)
def test_the_order_of_a_dict_does_not_count(filled, random):
    pairs = list(filled.items())
    random.shuffle(pairs)
    assert hash_of(dict(pairs)) == hash_of(filled)
    assert hash_of([{"deep": dict(pairs)}]) == hash_of([{"deep": filled}])


UNLIKE = [
    1, 1.0, True, "1", b"1", Decimal(1), [1], (1,), {1}, frozenset({1}), {"1": 1}, {1: 1}, {True: 1}, 0, 0.0, -0.0,
    False, None, "", "None", [], (), {}, set(), [[]], float("nan"), "nan", Path("1"), 2**64, hex(2**64), [1, None],
    {"$tuple": [1]}, {"$int": "0x1"}, "é", "e\u0301",
]  # fmt: skip


def test_values_that_python_calls_equal_but_are_not_the_same_have_different_digests():
    found = [hash_of(value) for value in UNLIKE]
    assert len(set(found)) == len(UNLIKE)
    assert len({hash_of({"x": value}) for value in UNLIKE}) == len(UNLIKE)


# --- leaves ----------------------------------------------------------------------------------------------------------


def test_each_leaf_has_a_digest_of_its_own_under_its_place():
    tree = encode({"source": "a.csv", "options": {"limit": 3, "no-id": [1, {"x": (1, 2)}], "none": {}, "empty": []}})
    found = {place: digest(leaf) for place, leaf in leaves(tree)}
    assert list(found) == [
        "source",
        "options.limit",
        "options['no-id'][0]",
        "options['no-id'][1].x",
        "options.none",
        "options.empty",
    ]
    assert found["options.limit"] == hash_of(3)
    assert found["options['no-id'][1].x"] == hash_of((1, 2))


json_trees = st.recursive(
    st.none() | st.integers() | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "a.b", "a[0]", "", "0"]), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from("abc"), json_trees, max_size=3))
@settings(max_examples=200, deadline=None)
def test_two_leaves_never_share_a_place(tree):
    places = [place for place, _ in leaves(tree)]
    assert len(set(places)) == len(places)


@given(st.dictionaries(st.sampled_from("abc"), json_trees), st.dictionaries(st.sampled_from("abc"), json_trees))
@settings(max_examples=200, deadline=None)
def test_trees_with_different_digests_always_have_a_leaf_to_name_and_equal_ones_none(old, new):
    assert bool(differences(old, new)) == (digest(old) != digest(new))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"source": "a.csv"}, {"source": "b.csv"}, {"source": ("'a.csv'", "'b.csv'")}),
        ({"source": Path("a.csv")}, {"source": Path("b.csv")}, {"source": ("'a.csv'", "'b.csv'")}),
        ({"source": Path("a.csv")}, {"source": "a.csv"}, {"source": ("path 'a.csv'", "str 'a.csv'")}),
        ({"o": {"n": [1, 2]}}, {"o": {"n": [1, 3]}}, {"o.n[1]": ("2", "3")}),
        ({"a": 1}, {"a": 1.0}, {"a": ("1", "1.0")}),
        ({"a": 1}, {"a": True}, {"a": ("1", "True")}),
        ({"a": 1, "gone": 2}, {"a": 1, "new": 3}, {"gone": ("2", MISSING), "new": (MISSING, "3")}),
        ({"a": {"a.b": 1, "a": {"b": 2}}}, {"a": {"a.b": 5, "a": {"b": 2}}}, {"a['a.b']": ("1", "5")}),
        ({"a": "x" * 100}, {"a": "y"}, {"a": ("'" + "x" * 76 + "…", "'y'")}),
        ({"a": {1, 2}}, {"a": {2, 1}}, {}),
    ],
    ids=stable,
)
def test_a_difference_names_the_leaf_and_shows_both_values(old, new, expected):
    assert differences(encode(old), encode(new)) == expected


def test_only_so_many_differences_are_named():
    assert len(differences({str(i): 0 for i in range(50)}, {str(i): 1 for i in range(50)}, most=10)) == 10


# --- binding ---------------------------------------------------------------------------------------------------------


@workflow("etl")
def etl(source: str, limit: int = 1000, extra: dict | None = None):
    yield


@workflow("etl")
def etl_with_another_default(source: str, limit: int = 2000, extra: dict | None = None):
    yield


def test_pitfall_5_a_default_that_is_passed_is_the_same_as_one_that_is_not():
    assert bind_inputs(etl, {"source": "a"}).hash == bind_inputs(etl, {"source": "a", "limit": 1000}).hash
    assert bind_inputs(etl, {"limit": 1000, "source": "a"}).hash == bind_inputs(etl, {"source": "a"}).hash


def test_pitfall_5_a_changed_default_is_noticed_and_named():
    started = bind_inputs(etl, {"source": "a"})
    assert bind_inputs(etl_with_another_default, {"source": "a"}).hash != started.hash
    with pytest.raises(InputMismatchError) as caught:
        rebind_inputs(etl_with_another_default, started, {"source": "a"})
    assert caught.value.differences == {"limit": ("1000", "2000")}
    assert caught.value.expected_hash == started.hash
    assert "limit: 1000 → 2000" in str(caught.value)


def test_the_error_of_a_resume_with_another_input_says_which():
    started = bind_inputs(etl, {"source": "a.csv", "extra": {"a": [1]}})
    with pytest.raises(InputMismatchError, match=r"source: 'a.csv' → 'b.csv'; extra.a\[0\]: 1 → 2"):
        rebind_inputs(etl, started, {"source": "b.csv", "extra": {"a": [2]}})


def test_the_recorded_inputs_are_taken_where_none_are_given():
    started = bind_inputs(etl, {"source": "a.csv", "extra": {"a": (1,)}})
    again = rebind_inputs(etl, started, {})
    assert again == started
    assert again.values(etl) == {"source": "a.csv", "limit": 1000, "extra": {"a": (1,)}}


# --- code ------------------------------------------------------------------------------------------------------------

CODE = "def f(a, b=1):\n    x = a + b\n    return x\n"


@pytest.mark.parametrize(
    "same",
    [
        "def f(a,b = 1):  # a comment\n    # another\n\n    x = (a + b)\n    return x\n",
        "def f(a, b=1):\n    'A docstring.'\n    x = a + b\n    return x\n",
        "    def f(a, b=1):\n        x = a + b\n        return x\n",
        "\tdef f(a, b=1):\n\t\tx = a + b\n\t\treturn x\n",
    ],
)
def test_comments_formatting_docstrings_and_indentation_do_not_count_as_code(same):
    assert fingerprint_of_source(same) == fingerprint_of_source(CODE)


@pytest.mark.parametrize(
    "other",
    [
        CODE.replace("+", "-"), CODE.replace("b=1", "b=2"), CODE.replace("b=1", "b=1.0"), CODE.replace("b=1", "b"),
        CODE.replace("return x", "return None"), CODE.replace("return x", "return"), CODE.replace("def f", "def g"),
        CODE.replace("x\n", "x\n    'not a docstring'\n"), "@cached\n" + CODE, "async " + CODE,
    ],
)  # fmt: skip
def test_everything_else_counts_as_code(other):
    assert fingerprint_of_source(other) != fingerprint_of_source(CODE)
    assert len({fingerprint_of_source(CODE.replace("return x", f"return {x}")) for x in ("", "None", "[]", "0")}) == 4


def test_the_fingerprint_of_code_is_fixed():
    """Also from one version of Python to the next, whose `ast.dump` differ."""
    assert fingerprint_of_source(CODE) == "ast:v1:5940901f445b4bcc3a811089d2ab03de395c97d6c1e94b049625b4b1ae950536"


def test_a_string_with_lines_at_the_left_edge_is_no_obstacle_and_counts_as_it_is():
    nested = '    def f():\n        return """\nleft\n  two\n"""\n'
    assert fingerprint_of_source(nested) == fingerprint_of_source('def f():\n    return """\nleft\n  two\n"""\n') != ""


def test_code_that_cannot_be_read_has_no_fingerprint():
    assert fingerprint(len) == fingerprint_of_source("def") == fingerprint_of_source("a\0b") == ""
    assert fingerprint(etl).startswith("ast:v1:")
    assert fingerprint(etl) == fingerprint(etl.function) != fingerprint(etl_with_another_default)
