"""One writer a run in object storage, among real processes."""

from __future__ import annotations

import pytest

from flowckpt.errors import CheckpointStorageError, FencedError
from flowckpt.stores import open_store
from flowckpt.testing.contract import checkpoint, results
from tests.stores.sql_ownership import RUN, SqlOwnership, error_of, in_fork, shown


class ObjectOwnership(SqlOwnership):
    """The same, but for what a fence of objects and the threads of the library make different."""

    test_an_owner_goes_on_when_the_one_that_stole_from_it_gave_up_unwritten = None
    test_a_forked_child_may_not_write_to_the_run_of_its_parent = None
    test_a_forked_child_may_save_runs_of_its_own_and_read = None

    def test_an_owner_that_was_stolen_from_stays_fenced_although_the_thief_gave_up_unwritten(self, store, another):
        store.runs.acquire(RUN, take_over=False)
        store.runs.save(RUN, checkpoint(1, results("x")))
        assert another.runs.acquire(RUN, take_over=True).attempt == 2
        another.runs.release(RUN)
        with pytest.raises(FencedError):
            store.runs.save(RUN, checkpoint(2, results("x")))
        assert another.runs.owner(RUN) is None
        assert another.runs.acquire(RUN, take_over=False).attempt == 2
        another.runs.save(RUN, checkpoint(2, results("x"), attempt=2))
        assert shown(another) == [(2, "c2"), (1, "c1")]

    @pytest.mark.filterwarnings("ignore:This process")
    def test_a_forked_child_is_refused_and_does_not_hang(self, spec, store):
        store.runs.acquire(RUN, take_over=False)
        store.runs.save(RUN, checkpoint(1, results("x")))
        refused = CheckpointStorageError.__name__
        for act in (
            lambda: store.runs.save(RUN, checkpoint(2, results("x"))),
            lambda: store.runs.delete_checkpoint(RUN, "c1"),
            lambda: store.runs.clear(RUN),
            lambda: store.runs.load_latest(RUN),
            lambda: open_store(spec).runs.save("other", checkpoint(1)),
        ):
            assert in_fork(lambda act=act: error_of(act)) == refused
        assert in_fork(lambda: (store.runs.release(RUN), store.close())[0]) == "None"
        store.runs.save(RUN, checkpoint(2, results("x")))
        assert shown(store) == [(2, "c2"), (1, "c1")]


SHORT = (
    "test_a_second_process_is_told_who_owns_the_run",
    "test_a_stopped_owner_that_was_stolen_from_is_fenced_when_it_wakes_up",
    "test_the_run_of_a_killed_owner_is_taken_over_at_once",
    "test_an_owner_that_was_stolen_from_stays_fenced_although_the_thief_gave_up_unwritten",
)
"""What is proved of S3 always, and not only for long."""


class TestObjectOwnershipInADirectory(ObjectOwnership):
    @pytest.fixture
    def spec(self, tmp_path):
        return f"objects+file://{tmp_path / 'store'}?allow_unsafe=true"


class TestObjectOwnershipInS3(ObjectOwnership):
    @pytest.fixture
    def spec(self, s3, request, is_soak):
        if not is_soak and request.node.originalname not in SHORT:
            pytest.skip("a long test: run with --soak")
        return s3.spec(s3.make_bucket())
