"""A step's path: one to one, and nothing in it that a terminal would obey or nobody would see."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flowckpt.core.dsl import path_of

tricky = st.text(st.sampled_from("ab%/[]@2F5B0123.~ é\n\u202e"), min_size=1, max_size=6)
names = tricky | st.text(st.characters(exclude_categories=()), min_size=1, max_size=6)
uses = st.tuples(names, st.integers(0, 12))


def test_paths_read_like_the_names_that_they_are_made_of():
    assert path_of("fetch") == "fetch"
    assert path_of("fetch", 1) == "fetch[1]"
    assert path_of("Bilder laden – ä", 2) == "Bilder laden – ä[2]"
    assert path_of("..") == ".."


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("a/b", "a%2Fb"),
        ("x[2]", "x%5B2%5D"),
        ("@x", "%40x"),
        ("%2F", "%252F"),
        ("a\0b", "a%00b"),
        ("a\nb", "a%0Ab"),
        ("\x1b[31m", "%1B%5B31m"),
        ("\x7f\x85\x9b", "%7F%C2%85%C2%9B"),
        ("a\u202eb", "a%E2%80%AEb"),
        ("\u200b\u200e\u2066\ufeff", "%E2%80%8B%E2%80%8E%E2%81%A6%EF%BB%BF"),
        ("\u061c\xad", "%D8%9C%C2%AD"),
        ("\u2028", "%E2%80%A8"),
    ],
)
def test_what_would_deceive_or_control_is_percent_encoded(name, path):
    assert path_of(name) == path


@given(uses, uses)
@settings(max_examples=500)
@example(("x[2]", 0), ("x", 2))
@example(("a/b", 0), ("a%2Fb", 0))
@example(("a", 1), ("a[1]", 0))
@example(("a", 11), ("a1", 1))
def test_two_uses_have_one_path_only_where_they_are_the_same_use(one, other):
    assert (path_of(*one) == path_of(*other)) == (one == other)


@given(tricky, tricky, st.integers(0, 3))
def test_a_child_step_is_never_mistaken_for_a_step_of_the_parent(parent, child, occurrence):
    inside = f"{path_of(parent)}/{path_of(child, occurrence)}"
    assert inside.count("/") == 1
    assert "/" not in path_of(parent + child, occurrence)


def test_no_character_that_controls_or_hides_gets_into_a_path():
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if unicodedata.category(character) in hidden:
            path = path_of(f"a{character}b")
            assert path.isascii(), hex(code)
            assert path.isprintable(), hex(code)


@given(names, st.integers(0, 3))
def test_a_path_is_valid_unicode(name, occurrence):
    path_of(name, occurrence).encode()
