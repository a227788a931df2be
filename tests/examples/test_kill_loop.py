"""The proof by killing: wherever a run is killed, it ends as if it had not been, and nothing that was safe is redone."""

import asyncio
import random
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import pytest

from flowckpt import FileCheckpointStore
from tests.forked import Started

KILLABLE = Path(__file__).with_name("killable.py")
WORKERS = 2


@attrs.define
class Proof:
    """The killed runs of one store, each compared with one that was left alone."""

    folder: Path
    mode: str
    wanted: int
    expected: list[tuple] = attrs.Factory(list)
    seconds: float = 0.0
    starts: int = 0
    kills: int = 0
    at: Counter = attrs.Factory(Counter)  # how many kills came after so many acknowledged results
    counting: threading.Lock = attrs.Factory(threading.Lock)

    @property
    def is_enough(self) -> bool:
        """Whether there were as many kills as wanted, half of them in the middle of the run, at many places of it.

        A busy machine gives a process its time in lumps, so that it is killed at few places: then it takes more kills.
        """
        with self.counting:
            middle = sum(count for steps, count in self.at.items() if 0 < steps < len(self.expected) - 1)
            return self.kills >= self.wanted and middle >= self.wanted // 2 and len(self.at) >= 8

    def measure(self) -> None:
        """Run once without a kill: what it leaves is expected of the others, and its time is theirs."""
        times = []
        for number in range(3):
            child = self.start(f"calm-{number}", 0)
            began = time.monotonic()
            assert child.stdout.readline() == "done\n"
            times.append(time.monotonic() - began)
            assert self.end(child) == 0
        self.seconds = sorted(times)[1]
        self.expected = self.history("calm-0")
        paths = [path for path, *_ in self.expected[:-1]]
        assert [path for _, path in self.log("calm-0", "effects")] == paths
        assert len(paths) == len(set(paths)) >= 20

    def run(self, number: int) -> None:
        """Start a run, kill it and resume it until it has completed, and check what it left."""
        run, chance, generation = f"{self.mode}-{number}", random.Random(number), 0
        while True:
            is_spared = generation > 0 and chance.random() < 0.25
            if self.generation(run, generation, None if is_spared else chance.uniform(0, self.seconds)):
                break
            generation += 1
            assert generation < 50, f"{run} does not come to an end"
        self.check(run, generation)

    def generation(self, run: str, generation: int, seconds: float | None) -> bool:
        """Start or resume a run and perhaps kill it after some time; tell whether it came to its end."""
        child = self.start(run, generation)
        if seconds is not None:
            time.sleep(seconds)
            child.kill()
        rest = child.stdout.read()
        code = self.end(child)
        assert code == (0 if rest == "done\n" and code == 0 else -9), f"{run}: exit {code}, said {rest!r}"
        acknowledged = max((int(steps) for _, steps in self.log(run, "acknowledged")), default=0)
        with self.counting:
            self.starts += 1
            if rest != "done\n":
                self.kills += 1
                self.at[acknowledged] += 1
        return rest == "done\n"

    def check(self, run: str, last: int) -> None:
        assert self.history(run) == self.expected
        order = {path: index for index, (path, *_) in enumerate(self.expected[:-1])}
        acknowledged, effects = self.log(run, "acknowledged"), self.log(run, "effects")
        safe = 0
        for generation in range(last + 1):
            executed = [path for number, path in effects if number == generation]
            again = [path for path in executed if order[path] < safe]
            assert not again, f"{run}: {again} executed again by start {generation}, {safe} results were safe"
            first = order[executed[0]] if executed else 0
            assert [order[path] for path in executed] == list(range(first, first + len(executed)))
            safe = max([safe, *(int(steps) for number, steps in acknowledged if number == generation)])
        assert {path for _, path in effects} == set(order)
        assert safe == len(order)

    def start(self, run: str, generation: int) -> Started:
        child = Started([KILLABLE, self.folder, run, generation, self.mode], stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "begun\n"
        return child

    def end(self, child: Started) -> int:
        child.stdout.close()
        return child.wait(120)

    def log(self, run: str, kind: str) -> list[tuple[int, str]]:
        file = self.folder / f"{run}.{kind}"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(generation), rest) for generation, rest in (line.split(" ", 1) for line in lines)]

    def history(self, run: str) -> list[tuple]:
        """What a run left: its results and its own output."""
        data = asyncio.run(FileCheckpointStore(self.folder).load_latest(run))
        assert data.status == "completed"
        results = [
            (result.path, result.success, result.output, result.error and (result.error.type, result.error.message))
            for result in data.step_results
        ]
        return [*results, ("", True, data.output, None)]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", ["loop", "guest"])
def test_a_killed_run_ends_as_one_that_was_left_alone(tmp_path, request, mode, record_property):
    is_soak = request.config.getoption("--soak", default=False)
    proof = Proof(tmp_path, mode, wanted=500 if is_soak else 50)  # of each mode
    proof.measure()
    numbers = iter(range(10_000))

    def work() -> None:
        while not proof.is_enough and proof.kills < 4 * proof.wanted:
            proof.run(next(numbers))

    with ThreadPoolExecutor(WORKERS) as pool:
        for worker in [pool.submit(work) for _ in range(WORKERS)]:
            worker.result()
    record_property("kills", proof.kills)
    record_property("starts", proof.starts)
    print(f"{mode}: {proof.kills} kills in {proof.starts} starts of {proof.seconds:.3f} s; {sorted(proof.at.items())}")
    assert proof.is_enough, (proof.kills, proof.at)
