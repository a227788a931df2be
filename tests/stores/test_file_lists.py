"""A page of the runs of a file store: the same as of the whole list, and most runs are not read for it."""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime, timedelta

import pytest

from flowckpt import FileCheckpointStore
from flowckpt.core.records import Reason, Status
from flowckpt.core.records.listing import RunFilter
from flowckpt.stores.file import reader
from flowckpt.stores.file.layout import run_directory
from flowckpt.testing.store_under_test import checkpoint

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
COUNT = 60


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Runs that started a minute after each other, some of which were written to much later."""
    monkeypatch.setattr(reader, "_FEW", 5)
    store = FileCheckpointStore(tmp_path / "s")
    names = [f"run-{number}" for number in range(COUNT)]
    random.Random(7).shuffle(names)
    for number, name in enumerate(names):
        reason = Reason.FAILED if number % 10 == 3 else Reason.COMPLETED
        started = FIRST + timedelta(minutes=number - number % 4 // 3)  # one in four starts with the one before it
        store.runs.save(name, checkpoint(1, reason=reason, saved_at=started))
        store.runs.release(name)
        written = started + timedelta(hours=3 if number % 7 == 0 else 0, seconds=number)
        set_time(store, name, written)
    yield store
    store.close()


def set_time(store, name, moment):
    segment = store.path / "runs" / run_directory(name) / "00000001.jsonl"
    os.utime(segment, (moment.timestamp(), moment.timestamp()))


@pytest.fixture
def read(monkeypatch):
    """How many runs were read."""
    counted, describe = [0], reader.describe_run

    def count(*given):
        counted[0] += 1
        return describe(*given)

    monkeypatch.setattr(reader, "describe_run", count)
    return counted


def ids(runs):
    return [info.workflow_id for info in runs]


@pytest.mark.parametrize("wanted", [{}, {"statuses": [Status.FAILED]}, {"text": "5"}, {"workflow": "none"}])
@pytest.mark.parametrize("limit", [1, 4, 25, 100])
def test_the_pages_together_are_the_list(store, wanted, limit):
    whole = RunFilter(**wanted).of(store.runs.survey_runs().runs)
    found, before = [], None
    while page := store.runs.survey_runs(RunFilter(**wanted, limit=limit, before=before)).runs:
        found += ids(page)
        before = page[-1].started_at, page[-1].workflow_id
    assert found == ids(whole)


def test_a_page_reads_few_runs(store, read):
    store.runs.survey_runs(RunFilter(limit=4))
    assert read[0] <= 4 + 4 + COUNT // 7  # those of the page and of the last tie, and what was written to later
    read[0] = 0
    store.runs.survey_runs()
    assert read[0] == COUNT


def test_files_without_their_times_are_all_read(store, read):
    for number in range(COUNT):
        set_time(store, f"run-{number}", FIRST - timedelta(days=1))  # as a clock that was set back leaves them
    page = store.runs.survey_runs(RunFilter(limit=4)).runs
    assert read[0] == COUNT + 1 and ids(page) == ids(store.runs.survey_runs().runs[:4])


def test_what_is_damaged_and_newest_is_reported(store):
    newest = store.runs.survey_runs(RunFilter(limit=1)).runs[0].workflow_id
    (store.path / "runs" / run_directory(newest) / "00000001.jsonl").write_bytes(b"damaged\n")
    survey = store.runs.survey_runs(RunFilter(limit=1))
    assert [finding.workflow_id for finding in survey.unreadable] == [newest] and len(survey.runs) == 1
