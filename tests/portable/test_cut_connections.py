"""A run that arrives while the line to the store is cut: all of it is there or nothing, and done again, all of it is."""

from __future__ import annotations

import os

import pytest
from runs import done, exported

from flowckpt.errors import CheckpointStorageError
from flowckpt.maintenance import copy_run, export_run, import_run
from flowckpt.stores import PostgresCheckpointStore, open_store
from flowckpt.stores.postgres.database import PostgresSession
from tests.cutting_proxy import CuttingProxy
from tests.faulty_proxy import TIMEOUT, FaultyProxy
from tests.portable.test_crash_points import in_a_process


@pytest.fixture
def file(source, tmp_path):
    done(export_run(source, "run", tmp_path / "file"))
    return tmp_path / "file"


@pytest.fixture
def bring(source, file):
    """Bring the run into a store, in one of the two ways."""

    def act(store, number):
        return done(import_run(store, file) if number % 2 else copy_run(source, store, "run"))

    return act


@pytest.fixture
def url(postgres, postgres_database):
    return postgres.url(postgres_database)


@pytest.fixture
def calm(url):
    """The store, through a line that holds."""
    store = PostgresCheckpointStore(url, allow_unsafe=True)
    done(store.list_runs())
    yield store
    store.close()


@pytest.fixture
def proxy(postgres):
    made = CuttingProxy(postgres.port)
    yield made
    made.close()


def check_all_or_nothing(calm, wanted):
    """Return whether the run is there, whole."""
    is_there = [info.workflow_id for info in done(calm.list_runs())] == ["run"]
    assert is_there or (done(calm.list_runs()) == [] and done(calm.load_latest("run")) is None)
    assert not is_there or exported(calm) == wanted
    return is_there


def check_whole(calm, wanted):
    assert exported(calm) == wanted
    assert {finding.severity for finding in done(calm.check())} == {"ok"}
    assert done(calm.owner("run")) is None
    done(calm.clear("run"))


def test_postgresql_takes_a_run_in_whole_or_not_at_all_wherever_its_answers_are_cut(
    source, url, calm, proxy, bring, is_soak
):
    wanted = exported(source)
    there = []

    def cut(number, patience=0.0, **where):
        """Bring the run while the line is cut, and then, where that failed, again."""
        store = PostgresCheckpointStore(proxy.url_through(url), patience_seconds=patience)
        for name, value in where.items():
            setattr(proxy, name, value)
        try:
            bring(store, number)
        except CheckpointStorageError:
            assert not patience, "a line that was cut is replaced"
            there.append(check_all_or_nothing(calm, wanted))
            bring(store, number)
        proxy.cut_at, proxy.cut_after, proxy.skips = None, b"", 0
        store.close()
        check_whole(calm, wanted)

    cut(1)
    size = proxy.answered
    for number, point in enumerate(range(0, size, 1 if is_soak else size // 12)):
        cut(number, cut_at=point)
    assert len(there) > 8
    assert not there[0]
    cuts = None
    for skips in range(20):  # each commit that it takes: what was asked is done, and the answer lost
        if proxy.cuts == cuts:
            break
        cuts = proxy.cuts
        cut(1, cut_after=b"COMMIT", skips=skips)
        cut(1, patience=20.0, cut_after=b"COMMIT", skips=skips)
    assert there[-1], "the last commit was the run's"


def test_postgresql_keeps_nothing_of_a_run_whose_bringer_is_killed_at_any_statement(source, url, calm, bring, is_soak):
    wanted = exported(source)
    number = 1
    while True:

        def die(number=number):
            left, plain = [number], PostgresSession.change

            def change(session, statement, parameters=()):
                left[0] -= 1
                if left[0] == 0:
                    os._exit(9)
                return plain(session, statement, parameters)

            PostgresSession.change = change
            bring(PostgresCheckpointStore(url, allow_unsafe=True), number)

        code = in_a_process(die)
        assert check_all_or_nothing(calm, wanted) == (code == 0)
        if code == 0:
            break
        bring(calm, number)
        check_whole(calm, wanted)
        number += 1 if is_soak else 9
    assert number > 30


@pytest.mark.timeout(300)
def test_s3_takes_a_run_in_whole_or_not_at_all_whatever_fails(source, s3, bring, is_soak):
    wanted, refused = exported(source), 0
    bucket = s3.make_bucket()
    calm = open_store(s3.spec(bucket))
    proxy = FaultyProxy(s3.endpoint, share=0.0, seed=5)
    try:
        for number in range(60 if is_soak else 3):
            spec = f"s3://{bucket}/some/where?endpoint={proxy.endpoint}&region=us-east-1&request_seconds={TIMEOUT}"
            store = open_store(spec)
            store.runs.bucket._patience = 0.0
            store.runs.list_runs()
            proxy.share = 0.2
            try:
                bring(store, number)
            except CheckpointStorageError:
                refused += 1
                check_all_or_nothing(calm, wanted)
            proxy.share = 0.0
            store.close()
            for each in proxy._late:  # what a line that was cut still brings to the server
                each.join()
            bring(calm, number)
            check_whole(calm, wanted)
        assert refused >= (30 if is_soak else 1)
    finally:
        proxy.close()
        calm.close()
