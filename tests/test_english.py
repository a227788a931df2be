"""Messages, help texts, first lines of docstrings and pages keep to plain English; see `english.py`.

The counts in `english.json` are what is left to rewrite. They only shrink: a test fails when a folder has more than its
count, and when it has fewer, until `python -m tests.english --lower` has written the new count.
"""

import json

import pytest

from tests import english

FOUND = english.findings()


@pytest.mark.parametrize("folder", sorted({*english.held(), *english.counted(FOUND)}))
def test_a_folder_has_as_many_phrases_as_its_count_and_no_more(folder):
    found = [each for each in FOUND if each.folder == folder]
    allowed = english.held().get(folder, 0)
    lines = "\n".join(map(str, found[-30:]))
    assert len(found) <= allowed, f"{len(found)} phrases, at most {allowed}. Rewrite the new ones:\n{lines}"
    assert len(found) >= allowed, f"{len(found)} phrases, not {allowed}. Run 'python -m tests.english --lower'."


def test_the_how_to_pages_have_none():
    assert [str(each) for each in FOUND if each.folder == "docs/how-to"] == []


def test_the_counts_are_sorted_and_name_only_folders_with_findings():
    counts = english.held()
    assert list(counts) == sorted(counts)
    assert all(count > 0 for count in counts.values())


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


@pytest.mark.parametrize(
    ("before", "now", "is_written"),
    [
        ({"flowckpt/a": 2}, {"flowckpt/b": 2}, True),
        ({"flowckpt/a": 2}, {"flowckpt/a": 1}, True),
        ({"flowckpt/a": 2}, {"flowckpt/a": 3}, False),
        ({"docs": 3, "flowckpt/a": 1}, {"flowckpt/a": 2}, False),
    ],
)
def test_the_counts_are_lowered_and_never_raised(before, now, is_written, tmp_path, monkeypatch, capsys):
    file = tmp_path / "english.json"
    file.write_text(json.dumps(before))
    found = [english.Finding(folder, "", "", "") for folder, count in now.items() for _ in range(count)]
    monkeypatch.setattr(english, "COUNTS", file)
    monkeypatch.setattr(english, "findings", lambda: found)
    assert english.main(["--lower"]) == (0 if is_written else 1)
    assert json.loads(file.read_text()) == (now if is_written else before)
