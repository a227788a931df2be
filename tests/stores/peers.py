"""Stores in processes of their own: live, stopped, killed and forked ones."""

from __future__ import annotations

import os
import signal

import attrs

from flowckpt import step, workflow
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.core.system.process import current_process
from flowckpt.errors import FlowckptError
from flowckpt.stores import open_store
from flowckpt.testing.contract import checkpoint, results
from tests.forked import processes

RUN = "run-1"
RUNS = [f"run-{number}" for number in range(12)]


@workflow("durable")
def durable(count: int):
    for number in range(count):
        yield step("work").python(str, number).checkpoint()
    return count


def elsewhere():
    """This process, as it looks from another machine."""
    return attrs.evolve(current_process(), host="another-machine")


def serve(spec, pipe, is_elsewhere, lease_seconds, environment):
    """In another process: do to a store what comes through the pipe, and send back what came of it."""
    os.environ.update(environment)  # the server that forks may be older than the credentials
    store = open_store(spec)
    if is_elsewhere:
        store.runs._process = elsewhere
    if lease_seconds:
        store.runs._times = type(store.runs._times)(lease_seconds)
        store.runs._heartbeat._interval = lease_seconds / 3
    with blocking_allowed(True):
        while True:
            method, arguments, options = pipe.recv()
            try:
                answer = getattr(store.runs, method)(*arguments, **options)
            except FlowckptError as error:
                answer = error
            try:
                pipe.send(answer)
            except Exception:  # what cannot be pickled
                pipe.send(repr(answer))


class Peer:
    """A store in a process of its own."""

    def __init__(self, spec, *, is_elsewhere=False, lease_seconds=0.0):
        self.pipe, other = processes.Pipe()
        self.process = processes.Process(
            target=serve, args=(spec, other, is_elsewhere, lease_seconds, dict(os.environ)), daemon=True
        )
        self.process.start()
        other.close()

    def send(self, method, *arguments, **options):
        self.pipe.send((method, arguments, options))

    def answer(self):
        assert self.pipe.poll(120), "no answer"
        return self.pipe.recv()

    def ask(self, method, *arguments, **options):
        self.send(method, *arguments, **options)
        return self.answer()

    def own_and_save(self, attempt=1):
        self.ask("acquire", RUN, take_over=False)
        assert self.save(1, attempt) is None

    def save(self, sequence, attempt=1, name=None):
        return self.ask("save", RUN, checkpoint(sequence, results("x"), attempt=attempt, checkpoint_id=name))

    def signal(self, number):
        os.kill(self.process.pid, number)

    def end(self):
        if self.process.is_alive():
            self.signal(signal.SIGKILL)
        self.process.join(120)
        self.pipe.close()


def peers_on(spec):
    """Yield what makes peers, for a fixture; all of them are ended behind it."""
    made = []

    def make(**options):
        made.append(Peer(spec, **options))
        return made[-1]

    yield make
    for peer in made:
        peer.end()


def in_fork(work):
    """Run work in a forked child; return what it returned, as text."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, str(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        answer = file.read()
    os.waitpid(pid, 0)
    return answer


def error_of(act):
    """Do something, and name the error that it raises."""
    try:
        act()
    except FlowckptError as error:
        return type(error).__name__
    return "nothing"


def shown(store):
    """The checkpoints of the run, the newest first."""
    return [(ref.sequence, ref.checkpoint_id) for ref in store.runs.references(RUN)]
