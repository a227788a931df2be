"""Messages for a run: one object each, created conditionally, next to the attempts of the life that they are for.

A sender does not own the run, so it creates nothing under an attempt. The name of the object is the id of the message,
so a message that is sent twice exists once; a random token shows which of the two exists, even after a lost reply. A clear
writes its mark first and then deletes the messages; a sender checks for that mark after it has created its object. So one
of the two removes the message, and a message that neither removes is in a life that is no longer read.
"""

from __future__ import annotations

import json
import secrets

from flowckpt.core.codec.checkpoints import check_schema
from flowckpt.core.records.checkpoint import SCHEMA_VERSION
from flowckpt.core.records.wait import Signal
from flowckpt.errors import CheckpointCorruptedError, CheckpointNotFoundError, CheckpointStorageError
from flowckpt.stores.file.layout import is_signal, signal_name
from flowckpt.stores.log.segment import START, chain_line
from flowckpt.stores.objects.attempt import corrupt_object_error, is_intact, read_tail
from flowckpt.stores.objects.bucket import Bucket
from flowckpt.stores.objects.claim import read_keys
from flowckpt.stores.objects.layout import InflationError, RunKeys, pack, unpack
from flowckpt.stores.runs_base import refused_as_encoding_error

_LOOKS = 5
"""How often the messages are listed again while other processes remove some of them."""


def send_signal(bucket: Bucket, workflow_id: str, signal: Signal) -> bool:
    """Make a message durable; return whether it is new.

    Raises:
        CheckpointNotFoundError: the run does not exist, or was cleared meanwhile.
        EncodingError: a text in it cannot be recorded.
        CheckpointStorageError: a request failed; the error says whether the message may exist.
    """
    keys = read_keys(bucket, workflow_id)
    if not _exists(bucket, keys, workflow_id):
        raise CheckpointNotFoundError(workflow_id)
    body = pack(_encode(workflow_id, signal))
    key, may_be_there = keys.signal(signal.signal_id), False
    try:
        is_new = bucket.create(key, body, workflow_id, "signal") is None
        may_be_there = True
        if read_keys(bucket, workflow_id).life != keys.life:
            bucket.delete([key], workflow_id, "signal")
            raise CheckpointNotFoundError(workflow_id)
    except CheckpointStorageError as error:
        if not (may_be_there or error.is_outcome_unknown):
            raise
        raise CheckpointStorageError(
            error.message,
            workflow_id=workflow_id,
            operation="signal",
            is_outcome_unknown=True,
            remedy=f"Send it again under the id {signal.signal_id!r}: it is then stored once.",
        ) from error
    return is_new


def read_signals(bucket: Bucket, workflow_id: str) -> list[Signal]:
    """Return the messages for a run in the order of sending.

    Raises:
        CheckpointCorruptedError: a message is damaged.
        CheckpointStorageError: a request failed.
    """
    keys = read_keys(bucket, workflow_id)
    if not keys.has_signals or not _exists(bucket, keys, workflow_id):
        return []
    wanted: list[str] = []
    bodies: list[bytes | None] = []
    for _ in range(_LOOKS):
        wanted = [key for key in bucket.list_keys(keys.signals, workflow_id) if is_signal(_last_part(key))]
        bodies = [*bucket.get_all(wanted, workflow_id)]
        if None not in bodies:  # otherwise one was removed, perhaps replaced by one that was not listed yet
            break
    objects = zip(wanted, bodies, strict=True)
    signals = [parse_signal(body, workflow_id, key) for key, body in objects if body is not None]
    return sorted(signals, key=lambda signal: (signal.sent_at, signal.signal_id))


def _exists(bucket: Bucket, keys: RunKeys, workflow_id: str) -> bool:
    """Return whether a run has a record that counts."""
    for attempt in reversed(keys.attempts):
        tail = read_tail(bucket, keys.at(attempt), workflow_id)
        if tail.is_ignored:
            return False
        if tail.is_begun:
            return True
    return False


def _last_part(key: str) -> str:
    return key.rpartition("/")[2]


def _encode(workflow_id: str, signal: Signal) -> bytes:
    document = {
        "flowckpt": "signal",
        "schema_version": SCHEMA_VERSION,
        "workflow_id": workflow_id,
        "token": secrets.token_hex(16),
        "signal": signal.to_document(),
    }
    with refused_as_encoding_error():
        text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return chain_line(text[:-1].encode("utf-8"), START)[0]


def parse_signal(body: bytes, workflow_id: str, key: str) -> Signal:
    """Return the message in an object.

    Raises:
        CheckpointCorruptedError: it is damaged.
    """
    try:
        line = unpack(body)
        if not is_intact(line):
            raise _damaged_error(workflow_id, key, "its checksum does not match")
        document = json.loads(line)
        if document["workflow_id"] != workflow_id:
            raise _damaged_error(workflow_id, key, f"it is for another run, {document['workflow_id']!r:.80}")
        check_schema(document["schema_version"])
        signal = Signal.from_document(document["signal"])
    except (InflationError, LookupError, TypeError, ValueError) as error:
        raise _damaged_error(workflow_id, key, f"it is malformed: {error!r:.80}") from error
    if signal_name(signal.signal_id) != _last_part(key):
        raise _damaged_error(workflow_id, key, "it has the name of another message")
    return signal


def _damaged_error(workflow_id: str, key: str, detail: str) -> CheckpointCorruptedError:
    return corrupt_object_error(key, workflow_id, detail, "Delete the object, and send the signal again.")
