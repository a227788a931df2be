"""A build of files: reads of three samples are mapped to a genome and sorted, then variants are called and plotted.

    python examples/variant_calls.py lab                     # makes lab/data: a genome and three samples
    flowckpt run examples/variant_calls.py -i folder=lab --id lab
    flowckpt resume lab --reuse inputs                       # after an edit: only what depends on it runs again

It is the example of the Snakemake tutorial, in pure Python and with made-up data. Each step names the files that it reads
and writes. So a resume finds out which of them changed, in whatever way, and the files it leaves behind are those of a run
from scratch.
"""

import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

from flowckpt import step, workflow

SAMPLES = ["A", "B", "C"]
READ = 20
LEAST_READS = 3


def map_reads(sample: str, folder: Path, seconds: float) -> int:
    """Find the best match of each read in the genome."""
    genome = sequence(folder / "data/genome.fa")
    reads = (folder / f"data/samples/{sample}.txt").read_text().split()
    places = range(len(genome) - READ + 1)
    time.sleep(seconds)
    lines = []
    for read in reads:
        best = min(places, key=lambda place: mismatches(genome[place : place + READ], read))
        lines.append(f"{best}\t{read}\n")
    write(folder / f"mapped/{sample}.tsv", lines)
    return len(lines)


def sort_reads(sample: str, folder: Path) -> None:
    lines = (folder / f"mapped/{sample}.tsv").read_text().splitlines(keepends=True)
    write(folder / f"sorted/{sample}.tsv", sorted(lines, key=lambda line: (int(line.split("\t")[0]), line)))


def call_variants(samples: list[str], folder: Path) -> int:
    """Write the places where most reads of all samples agree on another base than the genome has."""
    genome, seen = sequence(folder / "data/genome.fa"), defaultdict[int, Counter[str]](Counter)
    for sample in samples:
        for line in (folder / f"sorted/{sample}.tsv").read_text().splitlines():
            place, read = line.split("\t")
            for offset, base in enumerate(read):
                seen[int(place) + offset][base] += 1
    lines = []
    for position, bases in sorted(seen.items()):
        base, count = max(bases.items(), key=lambda each: (each[1], each[0]))
        if base != genome[position] and count >= LEAST_READS:
            lines.append(f"{position}\t{genome[position]}\t{base}\t{round(100 * count / bases.total())}\n")
    write(folder / "calls/all.tsv", lines)
    return len(lines)


def plot_qualities(folder: Path) -> None:
    """Plot the confidence of each call in percent."""
    lines = (folder / "calls/all.tsv").read_text().splitlines()
    bars = [
        f'<rect x="{12 * index}" y="{100 - int(quality)}" width="10" height="{quality}"><title>{place}</title></rect>\n'
        for index, (place, _, _, quality) in enumerate(line.split("\t") for line in lines)
    ]
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {12 * len(bars)} 100">\n'
    write(folder / "plots/quality.svg", [svg, *bars, "</svg>\n"])


@workflow
def variant_calls(folder: Path, seconds: float = 0.0) -> Generator[Any, Any, int]:
    """Build the calls and their plot.

    Args:
        folder: has the data, and gets everything else.
        seconds: how long each mapping takes at least, to watch it.
    """
    genome = folder / "data/genome.fa"

    def reads_of(sample: str, **_: Any) -> Path:
        return folder / f"data/samples/{sample}.txt"

    def mapped(sample: str, *_: Any, **__: Any) -> Path:
        return folder / f"mapped/{sample}.tsv"

    def in_order(sample: str, **_: Any) -> Path:
        return folder / f"sorted/{sample}.tsv"

    mapping = step("map").map(map_reads, SAMPLES, key=str, concurrency=2, folder=folder, seconds=seconds)
    yield from mapping.reads(genome, reads_of).writes(mapped).checkpoint()
    sorting = step("sort").map(sort_reads, SAMPLES, key=str, folder=folder)
    yield from sorting.reads(mapped).writes(in_order).checkpoint()
    calling = step("call").python(call_variants, SAMPLES, folder).reads(genome, *map(in_order, SAMPLES))
    count = yield from calling.writes(folder / "calls/all.tsv").checkpoint()
    plotting = step("plot").python(plot_qualities, folder).reads(folder / "calls/all.tsv")
    yield from plotting.writes(folder / "plots/quality.svg").checkpoint()
    return count


def sequence(file: Path) -> str:
    return "".join(line for line in file.read_text().splitlines() if not line.startswith(">"))


def mismatches(one: str, other: str) -> int:
    return sum(mine != theirs for mine, theirs in zip(one, other, strict=True))


def write(file: Path, lines: list[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(lines))


def make_data(folder: Path) -> None:
    """Make a genome, and reads of three samples that differ from it in ten places."""
    chance = random.Random(7)
    genome = chance.choices("ACGT", k=400)
    write(folder / "data/genome.fa", [">made up\n", "".join(genome), "\n"])
    for place in chance.sample(range(400), 10):
        genome[place] = chance.choice([base for base in "ACGT" if base != genome[place]])
    for sample in SAMPLES:
        starts = [chance.randrange(400 - READ) for _ in range(60)]
        write(folder / f"data/samples/{sample}.txt", ["".join(genome[at : at + READ]) + "\n" for at in starts])


if __name__ == "__main__":
    make_data(Path(sys.argv[1]))
