"""Many processes and threads on one store."""

from __future__ import annotations

import threading

from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.errors import RunLockedError
from flowckpt.stores import open_store
from flowckpt.testing.contract import checkpoint, results
from tests.forked import processes


def _fill(spec, number, saves, barrier, answers):
    store = open_store(spec)
    try:
        with blocking_allowed(True):
            barrier.wait(120)
            steps = results(*range(saves))
            for sequence in range(1, saves + 1):
                store.runs.save(f"run-{number}", checkpoint(sequence, steps[:sequence]))
                store.runs.list_runs()
                try:
                    store.runs.acquire("shared", take_over=False)
                    store.runs.release("shared")
                except RunLockedError:
                    pass
            answers.put((number, "done"))
    except BaseException as error:
        answers.put((number, repr(error)))


def fill_by_processes(spec, *, count, saves):
    """Begin on a new store in many processes at once; each saves its own run, and fights for one more."""
    barrier, answers = processes.Barrier(count), processes.Queue()
    started = [processes.Process(target=_fill, args=(spec, number, saves, barrier, answers)) for number in range(count)]
    for process in started:
        process.start()
    said = dict(answers.get(timeout=120) for _ in started)
    for process in started:
        process.join(120)
    assert said == dict.fromkeys(range(count), "done")
    store = open_store(spec)
    for number in range(count):
        latest = store.runs.load_latest(f"run-{number}")
        assert (latest.sequence, len(latest.step_results)) == (saves, saves)
    assert {finding.severity for finding in store.runs.check(None)} == {"ok"}
    store.close()


def fill_by_threads(store):
    """Save runs of their own in many threads, through one store."""
    failures = []

    def work(number):
        try:
            with blocking_allowed(True):
                steps = results(*range(20))
                for sequence in range(1, 21):
                    store.runs.save(f"run-{number}", checkpoint(sequence, steps[:sequence]))
                    store.runs.load_latest(f"run-{number}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(store.runs.list_runs()) == 6
