"""The worker processes as a plain executor."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import BrokenExecutor, wait

import far_steps
import pytest
from far_processes import gone, seen

from flowckpt import ProcessExecutor
from flowckpt.errors import SettingError
from flowckpt.execution.executors import processes
from flowckpt.execution.executors.base import StoppedWorkError


@pytest.fixture
def executor():
    made = ProcessExecutor(2)
    yield made
    made.kill()


@pytest.fixture
def patient(monkeypatch):
    """Work that was stopped once has all the time that it needs."""
    monkeypatch.setattr(processes, "GRACE_SECONDS", 600)


def test_it_calls_functions_in_other_processes(executor):
    assert executor.submit(far_steps.double, 4).result() == 8
    assert executor.submit(far_steps.pid).result() != os.getpid()


def test_a_process_is_used_again(executor):
    assert len({executor.submit(far_steps.pid).result() for _ in range(20)}) == 1


def test_it_has_no_more_processes_than_it_may(executor):
    futures = [executor.submit(far_steps.pid) for _ in range(50)]
    assert 1 <= len({each.result() for each in futures}) <= 2


def test_what_a_function_raises_is_raised_here(executor):
    with pytest.raises(SystemExit):
        executor.submit(far_steps.leave, 3).result()
    assert executor.submit(far_steps.double, 1).result() == 2


def test_what_cannot_be_sent_back_is_told_and_the_process_goes_on(executor):
    process = executor.submit(far_steps.pid).result()
    assert "StubbornError" in str(executor.submit(far_steps.stubborn).exception())
    assert executor.submit(far_steps.pid).result() == process


def test_what_cannot_be_sent_is_refused_at_once(executor):
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        executor.submit(lambda: None)


def test_a_killed_process_fails_its_own_work_and_no_other(executor, tmp_path):
    other = executor.submit(far_steps.spin, str(tmp_path / "began"), "", 0.5)
    seen(tmp_path / "began")
    killed = executor.submit(far_steps.die)
    assert isinstance(killed.exception(), BrokenExecutor)
    assert killed.exception().exit_code == -9
    assert other.result() is None
    assert executor.submit(far_steps.double, 4).result() == 8


def test_a_process_that_exits_in_the_middle_is_told_with_its_code(executor):
    assert executor.submit(os._exit, 3).exception().exit_code == 3


def test_work_that_is_stopped_cleans_up_and_ends(executor, tmp_path, patient):
    future = executor.submit(far_steps.spin, str(tmp_path / "began"), str(tmp_path / "ended"))
    process = int(seen(tmp_path / "began"))
    executor.stop(future)
    assert isinstance(future.exception(timeout=120), StoppedWorkError)
    assert seen(tmp_path / "ended") == "cleaned up"
    assert gone(process)
    assert executor.submit(far_steps.double, 4).result() == 8


def test_work_that_ignores_it_is_killed_at_once_when_it_is_stopped_twice(executor, tmp_path, patient):
    future = executor.submit(far_steps.ignore_everything, str(tmp_path / "began"))
    process = int(seen(tmp_path / "began"))
    executor.stop(future)
    assert not future.done()
    executor.stop(future)
    assert isinstance(future.exception(timeout=120), StoppedWorkError)
    assert gone(process)


def test_what_the_work_has_started_ends_with_it(executor, tmp_path):
    future = executor.submit(far_steps.start_another, str(tmp_path / "began"))
    child = int(seen(tmp_path / "began"))
    executor.stop(future)
    future.exception(timeout=120)
    assert gone(child)


def test_work_that_waits_can_be_stopped_before_it_begins(executor, tmp_path):
    running = [executor.submit(far_steps.spin, str(tmp_path / f"began{number}")) for number in range(2)]
    waiting = executor.submit(far_steps.pid)
    executor.stop(waiting)
    assert waiting.cancelled()
    for each in running:
        executor.stop(each)


def test_shutdown_waits_for_what_runs_and_takes_no_more():
    executor = ProcessExecutor(1)
    futures = [executor.submit(far_steps.double, number) for number in range(5)]
    executor.shutdown()
    assert [each.result(timeout=0) for each in futures] == [0, 2, 4, 6, 8]
    with pytest.raises(RuntimeError):
        executor.submit(far_steps.double, 1)


def test_kill_ends_everything_and_may_be_called_twice(tmp_path):
    executor = ProcessExecutor(2)
    running = executor.submit(far_steps.spin, str(tmp_path / "began"))
    others = [executor.submit(far_steps.spin, str(tmp_path / f"other{number}")) for number in range(3)]
    seen(tmp_path / "began")
    executor.kill()
    executor.kill()
    assert not wait([running, *others], timeout=0).not_done


def test_large_values_pass(executor):
    assert executor.submit(len, b"x" * 30_000_000).result() == 30_000_000


@pytest.mark.parametrize("number", [0, -1, True, 1.5, "2"])
def test_the_number_of_processes_is_checked(number):
    with pytest.raises(SettingError):
        ProcessExecutor(number)
