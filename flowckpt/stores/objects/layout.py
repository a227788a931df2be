"""The keys of a store's objects; ids are mapped to keys only here.

::

    store.json                                          the mark of the store, which tests whether conditional puts work
    runs/RUN/000001.000000000002/records/000000000000   attempt 2 of the run: its claim
                                         000000000001   its first record
                                         000000000002   …, and its end
                                 bundles/000000000000-000000000063   64 of them again, in one object
                                 alive                  overwritten now and then while its owner lives
                                 arriving               its first record may be the mark of a run that is brought whole
    runs/RUN/000001.values/SHA256                       large values
    runs/RUN/000001.signals/ID.json                     messages for the run, each created by its sender
    runs/RUN/000001.cleared                             the run was cleared; what comes next has the number 000002
    index/NAME                                          the index of results, overwritten; it may be missing or old

The numbers have a fixed width, so the order of keys is that of numbers.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable

import attrs

from flowckpt.stores.file.layout import run_directory, signal_name

RUNS = "runs"
MARK = "store.json"
INDEX = "index"
MOST = 10**12 - 1
"""The highest number that an attempt or a record can have."""

_ATTEMPT = re.compile(r"([0-9]{6})\.([0-9]{12})")
_OF_A_LIFE = re.compile(r"([0-9]{6})\.(cleared|signals|values)")
_NUMBER = re.compile(r"[0-9]{12}")
_NUMBERS = re.compile(r"([0-9]{12})-([0-9]{12})")


def run_key(workflow_id: str) -> str:
    """Return the prefix of all keys of a run.

    Args:
        workflow_id: any text; anything but a plain name is hashed.
    """
    return f"{RUNS}/{run_directory(workflow_id)}"


@attrs.frozen
class AttemptKeys:
    """The keys of one attempt.

    Attributes:
        run: the key of its run.
        life: the run's life: 1, and one more after each clear.
        attempt: the attempt.
    """

    run: str
    life: int
    attempt: int

    @property
    def root(self) -> str:
        """The prefix of all its keys."""
        return f"{self.run}/{self.life:06d}.{self.attempt:012d}"

    @property
    def records(self) -> str:
        """The prefix of its records."""
        return f"{self.root}/records"

    @property
    def bundles(self) -> str:
        """The prefix of its bundles."""
        return f"{self.root}/bundles"

    @property
    def alive(self) -> str:
        """The key of the heartbeat."""
        return f"{self.root}/alive"

    @property
    def arriving(self) -> str:
        """The key of the hint that its first record may be the mark of an import."""
        return f"{self.root}/arriving"

    def record(self, number: int) -> str:
        """Return the key of a record; 0 is the claim."""
        return f"{self.records}/{number:012d}"

    def bundle(self, first: int, last: int) -> str:
        """Return the key of a bundle, by its first and its last record."""
        return f"{self.bundles}/{first:012d}-{last:012d}"


@attrs.frozen
class RunKeys:
    """The keys directly under a run.

    Attributes:
        run: the key of the run.
        life: its current life, or the next one after a clear.
        attempts: the attempts of that life, ascending.
        former: attempts of former lives, of which at most the ends remain.
        has_signals: whether there are messages in this life.
        late: the prefixes of what arrived in former lives: messages sent while one ended, and large values that a
            writer added after its end.
    """

    run: str
    life: int = 1
    attempts: tuple[int, ...] = ()
    former: tuple[AttemptKeys, ...] = ()
    has_signals: bool = False
    late: tuple[str, ...] = ()

    def at(self, attempt: int) -> AttemptKeys:
        """Return the keys of an attempt of this life."""
        return AttemptKeys(self.run, self.life, attempt)

    def value(self, digest: str) -> str:
        """Return the key of a large value."""
        return f"{self.values}/{digest}"

    @property
    def values(self) -> str:
        """The prefix of the large values."""
        return _prefix(self.run, self.life, "values")

    def signal(self, signal_id: str) -> str:
        """Return the key of a message."""
        return f"{self.signals}/{signal_name(signal_id)}"

    @property
    def signals(self) -> str:
        """The prefix of the messages."""
        return _prefix(self.run, self.life, "signals")

    @property
    def cleared(self) -> str:
        """The key that marks the end of this life."""
        return _prefix(self.run, self.life, "cleared")


def parse_run_keys(run: str, names: Iterable[str]) -> RunKeys:
    """Parse the names under a run.

    Args:
        run: the key of the run.
        names: the first parts of all keys under it.
    """
    attempts: set[tuple[int, int]] = set()
    lives: dict[str, set[int]] = {"cleared": set(), "signals": set(), "values": set()}
    for name in names:
        if match := _ATTEMPT.fullmatch(name):
            attempts.add((int(match[1]), int(match[2])))
        elif match := _OF_A_LIFE.fullmatch(name):
            lives[match[2]].add(int(match[1]))
    last = max([*(life for life, _ in attempts), *lives["cleared"]], default=None)
    if last is None:
        return RunKeys(run)
    current = last + (last in lives["cleared"])
    return RunKeys(
        run,
        current,
        tuple(sorted(attempt for life, attempt in attempts if life == current)),
        tuple(AttemptKeys(run, life, attempt) for life, attempt in sorted(attempts) if life != current),
        current in lives["signals"],
        (
            *(_prefix(run, life, "signals") for life in sorted(lives["signals"]) if life != current),
            *(_prefix(run, life, "values") for life in sorted(lives["values"]) if life < current),
        ),
    )


def _prefix(run: str, life: int, kind: str) -> str:
    return f"{run}/{life:06d}.{kind}"


def parse_record_number(key: str) -> int | None:
    """Return the number of a record; None for any other key.

    Args:
        key: a key.
    """
    name = key.rpartition("/")[2]
    return int(name) if _NUMBER.fullmatch(name) else None


def parse_bundle_numbers(key: str) -> tuple[int, int] | None:
    """Return the first and the last number of a bundle; None for any other key.

    Args:
        key: a key.
    """
    match = _NUMBERS.fullmatch(key.rpartition("/")[2])
    return (int(match[1]), int(match[2])) if match else None


# The content of an object: plain text if it is short, else gzip. The first byte shows which.


SHORTEST = 4 * 1024
"""The smallest content that is compressed: a smaller request would not be cheaper."""
LARGEST = 256 * 1024 * 1024
"""The largest content that is compressed, which limits what an object may inflate to."""

_GZIP = b"\x1f\x8b"
_LEVEL = 5
_AS_GZIP = 31  # for zlib: a gzip header and trailer, the largest window


class InflationError(Exception):
    """An object is not valid gzip, or inflates to more than allowed; the store turns this into its own error."""


def pack(content: bytes) -> bytes:
    """Return the bytes to store in an object.

    Args:
        content: the content; if it starts like gzip, it is compressed whatever its length.
    """
    if content[:2] == _GZIP:
        return gzip.compress(content, _LEVEL, mtime=0)
    if not SHORTEST <= len(content) <= LARGEST:
        return content
    smaller = gzip.compress(content, _LEVEL, mtime=0)
    return smaller if len(smaller) < len(content) * 0.9 else content


def unpack(body: bytes, most: int = LARGEST) -> bytes:
    """Return the content of an object.

    Args:
        body: the stored bytes.
        most: the most bytes that it may inflate to.

    Raises:
        InflationError: it is damaged, or exceeds the limit.
    """
    if body[:2] != _GZIP:
        return body
    inflating = zlib.decompressobj(_AS_GZIP)
    try:
        content = inflating.decompress(body, most + 1)
    except zlib.error as error:
        raise InflationError(str(error)) from error
    if len(content) > most:
        raise InflationError(f"it inflates to more than {most} bytes")
    if not inflating.eof or inflating.unused_data:
        raise InflationError("the compressed text is incomplete")
    return content
