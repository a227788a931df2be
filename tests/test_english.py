"""Messages, help texts, first lines of docstrings and pages keep to plain English; see `english.py`."""

import pytest

from tests import english


def test_nothing_stops_a_reader():
    found = english.findings()
    assert not found, "\n".join(["Rewrite them:", *map(str, found)])


@pytest.mark.parametrize(
    ("text", "better"),
    [
        ("'x' is no process id", "is not a …"),
        ("an option 'q', which is none", "is not a …"),
        ("Begin the count anew.", "again, from the start, new"),
        ("The run goes on.", "resume, continue"),
        ("Carry it on with 'flowckpt resume x'", None),
        ("carries on where it stopped", "resume, continue"),
        ("the step behind it", "after"),
        ("Each failure is told as an event.", "emit, report"),
        ("Steps that run beside each other.", "in parallel"),
        ("Who names no run gets a list.", english.SUBJECT_FIRST),
        ("It runs. Where nothing is said, it stops.", english.SUBJECT_FIRST),
        ("- **Where nothing is said**, it stops.", english.SUBJECT_FIRST),
        ("| What is new | two |", english.SUBJECT_FIRST),
        ("The key is not at hand.", "available"),
        ("Another process brings the tables forward.", "migrate"),
        ("What failed?", None),
        ("It is no longer there.", None),
        ("There are no more runs.", None),
        ("Steps leave files or rows behind.", None),
        ("Only marked steps are told apart.", None),
        ("Whatever it returns is recorded.", None),
        ("One step goes onto the stack.", None),
    ],
)
def test_a_phrase_is_found(text, better):
    assert english.phrases(text)[:1] == ([better] if better else [])


def test_docstrings_count_with_their_first_line_and_messages_whole():
    source = '''
class Run:
    """Run anew.

    It goes on.
    """

    name: str
    """Behind the name."""

    def stop(self, why):
        raise ValueError(f"{why!r} is no reason" " which is told")


KEY = "anew"
'''
    texts = [text for _, text in english.texts_of(source)]
    assert sorted(texts) == ["Behind the name.", "Run anew.", "… is no reason which is told"]


def test_pages_count_without_blocks_headings_and_code():
    page = "# What goes on\n\n`is told` and\n\n```text\nbehind\n```\n\n````md\n```\nanew\n```\n````\n\nlast"
    assert [(number, text) for number, text in english.prose_of(page) if text] == [(3, "`…` and"), (15, "last")]
