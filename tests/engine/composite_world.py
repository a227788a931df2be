"""The world that the steps of random programs act upon, and the workflows that the programs are.

What a step does is noted; files are named after the step's arguments, so an edited program writes other files and leaves
the old ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import sys
import threading
import types
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

from composite_program import PLAIN, RECORDED, Node, all_nodes

from flowckpt import continue_as, current_step, now, parallel, publish, random, step, uuid, workflow
from flowckpt.core.dsl import Workflow
from flowckpt.core.records.outputs import CommandOutput
from flowckpt.errors import StepFailedError
from flowckpt.evidence import file_sha256
from flowckpt.execution.thread import AbandonedStepError

_numbers = itertools.count()


WRITE = 'printf %s "$1" > "$2"; printf %s "$3"'
WAITING: dict[str, Any] = {
    "sleep": lambda made, _: made.sleep(3600),
    "wait": lambda made, signal: made.wait(signal),
    "timed": lambda made, _: made.wait("never", timeout=60, default="nobody"),
    "approval": lambda made, name: made.approval(ask={"for": name}),
}


@workflow("started")
def started(item: Any) -> Generator[Any, Any, Any]:
    """Return what it was started with; another run starts it."""
    return (yield step("take").python(as_it_is, item).checkpoint())


@workflow("asking")
def asking(signal: str) -> Generator[Any, Any, Any]:
    """Wait for a signal, and reply to it."""
    got = yield step("ask").wait(signal)
    return (yield step("answer").reply("ask", [got]))


async def as_it_is(item: Any) -> Any:
    return item


class World:
    """A directory, the code of the steps in its present edition, and what the steps did."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.done: list[str] = []
        self.undone: list[str] = []
        self.twice: list[str] = []
        self.broken = -1
        self.standing: set[str] = set()
        self.asked_for: set[str] = set()
        """Steps of which somebody said that they are to be done again, or mean something else now."""
        self.is_all_asked_for = False
        self.undoable: set[str] = set()
        """Steps that did something and say how it is undone."""
        self._undone: set[int] = set()
        self._once: dict[str, str] = {}
        self._process = 0
        self._lock = threading.Lock()

    def act(self, process: int, number: int, kind: str, told: tuple[Any, ...], said: str) -> str:
        """Do the work of a step; its code calls it with what it makes of its arguments."""
        path = current_step().path
        with self._lock:
            if process != self._process:  # a thread of a process that is dead by now
                raise AbandonedStepError
            if kind != "model":  # that is done at each replay
                self.done.append(path)
                if number % 2 and kind != "once":  # one that is adopted does not run, and publishes nothing
                    publish(f"by {digest(path)}", said)
            if kind in ("flaky", "patient") and current_step().tries == 1:
                raise OSError("busy")
            if number == self.broken:
                raise OSError("broken")
            if kind == "fails" or (kind in ("odd", "lost") and told[0][1] % 2):
                raise ValueError("odd")
            name = name_of(number, told)
            file = self.root / name
            if kind == "once":
                if (
                    path not in self.asked_for
                    and not self.is_all_asked_for
                    and self._once.get(path) == said
                    and file.exists()
                    and file.read_text() == said
                ):
                    self.twice.append(path)
                self._once[path] = said
            if kind not in ("model", "lost"):  # those are done again, or not, as it happens
                self.standing.add(
                    name
                )  # first: who is stopped right behind its effect has done it, as its claims will say
            if kind in ("file", "once"):
                # Not by `write_text`: a step that is abandoned in the middle of it leaves a file object open, and that warns.
                descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.write(descriptor, said.encode())
                os.close(descriptor)
            if number in self._undone:
                self.undoable.add(path)
        return f"{name}:{said}"

    def undo(self, output: Any) -> None:
        told = output.stdout if isinstance(output, CommandOutput) else output
        name = told.partition(":")[0] if isinstance(told, str) else ""
        with self._lock:
            self.undone.append(current_step().path)
            self.standing.discard(name)
            if name:
                (self.root / name).unlink(missing_ok=True)

    def undo_call(self, output: Any, constant: int, seed: str, last: str) -> None:
        """Undo a step by its output and its arguments."""
        assert output.partition(":")[0].partition("-")[2] == digest(constant, seed, last)
        self.undo(output)

    def claim(self, output: Any) -> Any:
        return file_sha256(self.root / output.partition(":")[0])

    def workflow(self, block: tuple[Node, ...], *later: tuple[Node, ...]) -> Workflow[Any, Any]:
        """Import the program into a new process; the threads of the one before it can do nothing any more.

        Args:
            block: the program.
            *later: what the generations of the run do after it.
        """
        with self._lock:
            self._process += 1
            self._undone = {node.number for each in (block, *later) for node in all_nodes(each) if node.is_undone}
        functions = self._functions((*block, *itertools.chain(*later)))

        @workflow(name="random")
        def random(part: int = 0, before: Any = ()) -> Generator[Any, Any, list[Any]]:
            found = [*before, *(yield from self._block((block, *later)[part], functions, f"top{part or ''}"))]
            return continue_as(part=part + 1, before=found) if part < len(later) else found

        return random

    def state(self) -> dict[str, str]:
        return {file.name: file.read_text() for file in sorted(self.root.iterdir())}

    def _functions(self, block: tuple[Node, ...]) -> dict[int, Any]:
        """Import the steps' functions in their editions: under the same names, with other bodies."""
        source = ""
        for node in all_nodes(block):
            kind = node.works or node.kind
            asynchronous, pause = ("async ", "    await sleep(0)\n") if kind == "async" else ("", "")
            told = "*told" if node.works else "constant, seed, last"
            source += (
                f"{asynchronous}def made{node.number}({told}):\n{pause}    told = {told.removeprefix('*')}\n"
                f"    return act({node.number}, {kind!r}, told, digest({node.edition}, *told))\n\n"
            )
        file = self.root.parent / f"edition{next(_numbers)}.py"
        file.write_text(source)
        module = types.ModuleType("editions")
        module.__file__ = str(file)
        module.__dict__.update(act=partial(self.act, self._process), digest=digest, sleep=asyncio.sleep)
        sys.modules["editions"] = module
        exec(compile(source, str(file), "exec"), module.__dict__)
        return {node.number: module.__dict__[f"made{node.number}"] for node in all_nodes(block)}

    def _block(self, block: tuple[Node, ...], functions: dict[int, Any], seed: str) -> Generator[Any, Any, list[Any]]:
        outputs: list[Any] = []
        for node in block:
            try:
                output = yield self._step(node, functions, seed, outputs[-1] if outputs else None)
            except StepFailedError:
                if node.kind != "fails" and node.works != "lost":
                    raise
                output = "failed"
            if node.kind != "model":
                outputs.append(recorded(node, output))
        return outputs

    def _step(self, node: Node, functions: dict[int, Any], seed: str, last: Any) -> Any:
        made: Any = step(node.name)
        told = (node.constant, seed, digest(last))
        if node.kind == "group":
            steps = [self._step(each, functions, seed, last) for each in node.inner]
            made = parallel(*steps, name=node.name, concurrency=node.concurrency)
        elif node.kind == "race":
            steps = [self._step(node.inner[0], functions, seed, last), step("late").wait("never")]
            made = parallel(*(steps[::-1] if node.number % 2 else steps), name=node.name, min_success=1)
        elif node.kind == "publish":
            made = publish(f"{node.number} {digest(seed)}", digest(*told))
        elif node.kind == "child":
            made = made.workflow(self._child(node, functions), item=told)
        elif node.kind == "map":
            items: Any = [(key, value, *told) for key, value in node.items]
            function = self._child(node, functions) if node.works == "child" else functions[node.number]
            made = made.map(
                function,
                (each for each in items) if node.is_generator else items,
                key=first_of if node.is_keyed else None,
                concurrency=1 if node.is_race else node.concurrency,
                min_success=1 if node.is_race else None,
                tolerate=1.0 if node.works == "odd" else None,
            )
        elif node.kind in RECORDED:
            made = {"now": now, "uuid": uuid, "random": random}[node.kind](node.name)
        elif node.kind in WAITING:
            made = WAITING[node.kind](made, f"go{node.number}")
        elif node.kind == "start":
            made = made.start(started, item=told)
        elif node.kind == "reply":
            made = made.workflow(asking, signal=f"go{node.number}-{digest(seed)}")
        elif node.kind == "mail":
            signal = f"mail{node.number}-{digest(seed)}"
            sent = step("send").signal("run", signal, told)
            return parallel(
                sent.checkpoint() if node.has_checkpoint else sent, step("get").wait(signal), name=node.name
            )
        elif node.kind == "command":
            name, said = name_of(node.number, told), digest(node.edition, *told)
            made = made.command(["sh", "-c", WRITE, "sh", said, str(self.root / name), f"{name}:{said}"])
        elif node.kind == "sent":
            made = made.python(digest, *told).on("process")
        else:
            made = made.python(functions[node.number], *told)
        kind = node.works or node.kind
        if kind == "model":
            return made.ephemeral()
        if node.number % 3 == 0 and node.kind in PLAIN and node.kind not in ("command", *RECORDED):
            made = made.record_arguments()
        if node.version is not None:
            made = made.version(node.version)
        if node.has_checkpoint:
            made = made.checkpoint()
        if node.is_undone:
            made = made.rollback(self.undo_call if node.kind in ("pure", "file") else self.undo)
        elif kind in ("pure", "async", "file") and node.number % 2:
            made = made.cache()
        if node.place:
            made = made.on(node.place)
        if kind == "flaky":
            made = made.retry(2)
        if kind == "patient":
            made = made.retry(None, backoff=3600, factor=1)
        if kind == "command":
            made = made.evidence(file_sha256(self.root / name))
        if kind == "file":
            made = made.evidence(self.claim)
        if kind == "once" and node.kind == "map":  # what its claims are is known when it has ended
            return made.evidence(self.claim).at_most_once()
        if kind == "once":
            name, said = name_of(node.number, told), digest(node.edition, *told)
            stated = hashlib.sha256(said.encode()).hexdigest()
            made = made.evidence(file_sha256(self.root / name, stated)).at_most_once()
            made = made.adopt(lambda *_: f"{name}:{said}")
        return made

    def _child(self, node: Node, functions: dict[int, Any]) -> Workflow[Any, Any]:
        @workflow(name=f"child{node.number}")
        def inside(item: Any) -> Generator[Any, Any, list[Any]]:
            return (yield from self._block(node.inner, functions, digest(item)))

        return inside


def recorded(node: Node, output: Any) -> Any:
    """Return what of an output is recorded: a plan does not have the rest."""
    if node.kind == "group" and output != "failed":
        return [recorded(each, of) for each, of in zip(node.inner, output, strict=True) if each.kind != "model"]
    if node.kind == "race" and output != "failed":
        return recorded(node.inner[0], output[node.number % 2])
    if node.kind in RECORDED or node.kind == "start":
        return node.kind
    if node.kind == "approval":
        return output.by
    return output.stdout if node.kind == "command" else plain(output)


def plain(output: Any) -> Any:
    """Return an output whose tolerated failures are told by a word."""
    if isinstance(output, list | tuple):
        return [plain(each) for each in output]
    return "odd" if isinstance(output, StepFailedError) else output


def first_of(item: Any) -> str:
    return str(item[0])


def name_of(number: int, told: Any) -> str:
    return f"{number}-{digest(*told)}"


def digest(*told: Any) -> str:
    return hashlib.sha256(repr(told).encode()).hexdigest()[:12]
