"""What users wrote never commands a terminal."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath

import pytest

from flowckpt.cli.render.tables import ago_text, duration_text
from flowckpt.cli.render.terminal import escape, escape_lines, json_text, short_value, shorten

UNSAFE = [
    ("\x1b[2J", r"\x1b[2J"),
    ("\x9b31m", r"\x9b31m"),
    ("a\nb\rc\td", r"a\nb\rc\td"),
    ("\x00\x07\x7f", r"\x00\x07\x7f"),
    ("a\u202eb\u2066c", r"a\u202eb\u2066c"),
    ("\u2028\u200f\ufeff", r"\u2028\u200f\ufeff"),
    ("\ud800", r"\ud800"),
    ("\U000e0041", r"\U000e0041"),
]


@pytest.mark.parametrize(("text", "shown"), UNSAFE)
def test_what_a_terminal_would_obey_is_escaped(text, shown):
    assert escape(text) == shown


@pytest.mark.parametrize("text", ["plain", "Füße 東京 🎉", "👩‍🔬 family", "a b\u00a0c", ""])
def test_what_people_read_stays(text):
    assert escape(text) == text


def test_a_traceback_keeps_its_lines():
    assert escape_lines("a\n\tb\x1b[1m\n") == "a\n    b\\x1b[1m\n"


@pytest.mark.parametrize("text", [text for text, _ in UNSAFE])
def test_json_is_safe_and_the_same_value(text):
    written = json_text({"k": text})
    assert escape(written) == written
    assert json.loads(written) == {"k": text}


def test_long_values_are_cut():
    assert len(short_value("x" * 1000)) <= 200
    assert len(short_value(list(range(10_000)))) <= 200
    assert shorten("abcdefghi", 6) == "abc…hi"


def test_a_path_is_shown_as_it_is_typed():
    assert short_value(Path("a/report.txt")) == "a/report.txt"
    assert short_value({"p": [PurePosixPath("a b"), Path("c\nd")]}) == r"{'p': ['a b', 'c\nd']}"


def test_times_for_people():
    assert [duration_text(ms) for ms in (0.4, 999, 5321, 185_000, 7_500_000)] == [
        "0 ms",
        "999 ms",
        "5.32 s",
        "3 min 05 s",
        "2 h 05 min",
    ]
    now = datetime(2026, 11, 20, tzinfo=UTC)
    ages = [timedelta(seconds=s) for s in (1, 30, 90, 3 * 3600, 40 * 3600, 12 * 86_400)]
    assert [ago_text(now - age, now) for age in ages] == [
        "just now",
        "30 s ago",
        "1 min ago",
        "3 h ago",
        "40 h ago",
        "12 days ago",
    ]


def test_a_dict_is_shown_in_the_order_in_which_it_was_made():
    assert short_value({"z": 1, "a": {"y": 2, "b": {}}}) == "{'z': 1, 'a': {'y': 2, 'b': {}}}"
    assert short_value(dict.fromkeys(range(20, 0, -1), 0)).endswith("11: 0, ...}")
    assert short_value({1: {2: {3: {4: {5: 6}}}}}) == "{1: {2: {3: {4: {...}}}}}"
