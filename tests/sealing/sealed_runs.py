"""Keys that are the same in every test, and a store with a run in it, as honest and other people write it."""

from __future__ import annotations

import os

from flowckpt.stores import FileCheckpointStore
from flowckpt.stores.log.sealing.keys import Key, KeyRing
from flowckpt.testing.contract import checkpoint, results

RUN = "run-1"
ENCRYPT = Key(bytes(range(32)), "encrypt")
AUTHENTICATE = Key(bytes(range(1, 33)), "authenticate")
NEXT = Key(bytes(range(2, 34)), "encrypt")
STRANGE = Key(bytes(range(3, 35)), "encrypt")
RINGS = {"encrypt": KeyRing([ENCRYPT]), "authenticate": KeyRing([AUTHENTICATE])}
SECRET = "the word that nobody may read"


def save_attempt(path, ends, steps, **told):
    """Save checkpoints of a new attempt: after so many of the steps each."""
    store = FileCheckpointStore(path, **told)
    lease = store.runs.acquire(RUN, take_over=False)
    for number, end in enumerate(ends, 1):
        data = checkpoint(
            lease.last_sequence + number,
            steps[:end],
            attempt=lease.attempt,
            inputs={"name": SECRET},
            metadata={"tags": {"ü": SECRET}},
        )
        store.runs.save(RUN, data)
    store.close()


def steps():
    return results(SECRET, {"a": (1, 2)}, [SECRET, "end"], "fourth")


def make(path, **told):
    """Two attempts with two checkpoints each."""
    save_attempt(path, (1, 2), steps(), **told)
    save_attempt(path, (3, 4), steps(), **told)
    return path


def shown(store, run=RUN):
    """All that a reader is shown."""
    latest = store.runs.load_latest(run)
    references = [(ref.sequence, ref.checkpoint_id, ref.attempt, ref.steps) for ref in store.runs.references(run)]
    values = [] if latest is None else [result.output for result in latest.step_results]
    return references, None if latest is None else (latest.inputs, latest.snapshot, latest.metadata), values


def put(file, place, byte):
    """Change one byte where it stands: to write a file anew takes the disk a hundred times as long."""
    descriptor = os.open(file, os.O_WRONLY)
    try:
        os.pwrite(descriptor, bytes([byte]), place)
    finally:
        os.close(descriptor)


def segment(path, number, run=RUN):
    return path / f"runs/{run}/{number:08d}.jsonl"


def lines(path, number, run=RUN):
    return segment(path, number, run).read_bytes().splitlines(keepends=True)


def rechained(bodies):
    """Lines with the checksums that fit them: what somebody writes who knows the format and has no key."""
    from hashlib import sha256

    digest, found = bytes(32), []
    for body in bodies:
        digest = sha256(digest + body).digest()
        found.append(b'%b,"sha256":"%b"}\n' % (body, digest.hex().encode()))
    return b"".join(found)


def bodies(path, number, run=RUN):
    return [line[: line.rindex(b',"sha256":"')] for line in lines(path, number, run)]


def heads(path, run=RUN):
    """The files that say how far the attempts of a run have come, the newest last."""
    return sorted((path / f"runs/{run}").glob("head-*"))
