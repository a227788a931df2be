"""Messages for a run: one file each, next to its segments.

The sender does not own the run, so it never changes a segment. A message is written under a random name, synced, and
linked to a name made from its id: `link` never replaces a file, so a message sent twice exists once. Then the directory
is synced. The owner removes the message after a checkpoint has recorded it. A compaction replaces messages of older
keys, each by a rename.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from flowckpt.core.codec.checkpoints import check_schema
from flowckpt.core.records.checkpoint import SCHEMA_VERSION
from flowckpt.core.records.wait import Signal
from flowckpt.core.system.filesystem import Directory, open_if_there, write_all
from flowckpt.core.system.ids import new_token
from flowckpt.errors import CheckpointCorruptedError, UnauthenticatedRecordError, WrongKeyError
from flowckpt.stores.file.directory import make_folder, read_file, sweep_abandoned, temporary_file, write_new
from flowckpt.stores.file.layout import NOT_OURS, SIGNALS, is_signal, signal_name
from flowckpt.stores.log import segment as lines
from flowckpt.stores.log.sealing.protection import SealBrokenError, Seals
from flowckpt.stores.runs_base import refused_as_encoding_error

if TYPE_CHECKING:
    from flowckpt.stores.log.sealing.lines import LineSeal

_UNREADABLE = (CheckpointCorruptedError, UnauthenticatedRecordError, WrongKeyError)

_LIST_TRIES = 5
"""Maximum attempts to list the messages while others remove some of them."""


def write_signal(run: Directory, workflow_id: str, signal: Signal, seals: Seals) -> bool:
    """Make a message durable in the directory of a run; return whether it is new.

    Raises:
        EncodingError: the message contains text that cannot be recorded.
        FileNotFoundError: the run was cleared meanwhile.
    """
    content = _encode_signal(workflow_id, signal, seals)
    make_folder(run, SIGNALS)
    with run.open(SIGNALS) as directory:
        sweep_abandoned(directory)
        is_new = write_new(directory, signal_name(signal.signal_id), content)
        directory.sync()
        return is_new


def read_signals(run: Directory, workflow_id: str, seals: Seals) -> list[Signal]:
    """Return the messages in the directory of a run, in the order of sending.

    Raises:
        CheckpointCorruptedError: a message is damaged.
        UnauthenticatedRecordError: a message was written without the store's key.
    """
    found = (signal for signal, _ in _read_with_seals(run, workflow_id, seals))
    return sorted(found, key=lambda signal: (signal.sent_at, signal.signal_id))


def find_old_seals(run: Directory, workflow_id: str, seals: Seals) -> list[tuple[Signal, Seals]]:
    """Return the messages of older keys, each with the seals to write it with: what is encrypted stays encrypted.

    A message that cannot be read is left as it is, for the check to report.
    """
    if not seals.has_key:
        return []
    found: list[tuple[Signal, Seals]] = []
    for signal, seal in _read_with_seals(run, workflow_id, seals, skips_damaged=True):
        newer = seals.choose_pack_seals([seal])
        if seal is not None and not newer.is_current(seal):  # what no key has sealed is not made authentic here
            found.append((signal, newer))
    return found


def reseal_signals(run: Directory, workflow_id: str, seals: Seals) -> None:
    """Seal the messages of older keys again, durably, in the directory of an owned run."""
    if not (found := find_old_seals(run, workflow_id, seals)):
        return
    with run.open(SIGNALS) as directory:
        sweep_abandoned(directory)
        for signal, newer in found:
            with temporary_file(directory) as (file, temporary):
                write_all(directory.calls, file, _encode_signal(workflow_id, signal, newer))
                directory.calls.sync(file)
                name = signal_name(signal.signal_id)
                if directory.exists(name):  # otherwise its sender has withdrawn it
                    directory.rename(temporary, name)
                else:
                    directory.unlink(temporary)
        directory.sync()


def _read_with_seals(
    run: Directory, workflow_id: str, seals: Seals, *, skips_damaged: bool = False
) -> list[tuple[Signal, LineSeal | None]]:
    if not run.exists(SIGNALS):
        return []
    with run.open(SIGNALS) as directory:
        found: list[tuple[Signal, LineSeal | None]] = []
        for _ in range(_LIST_TRIES):
            found, has_lost_one = [], False
            for name in filter(is_signal, directory.names()):
                with contextlib.suppress(*_UNREADABLE if skips_damaged else ()):
                    try:
                        content = read_file(directory, name)
                    except (
                        FileNotFoundError
                    ):  # removed meanwhile, perhaps replaced by one that is not in the listing yet
                        has_lost_one = True
                        continue
                    except OSError as error:
                        if error.errno not in NOT_OURS:
                            raise
                        raise _damage_error(workflow_id, name, f"it cannot be read: {error.strerror}") from error
                    found.append(_decode_signal(content, workflow_id, name, seals))
            if not has_lost_one:
                break
    return found


def remove_signals(run: Directory, signal_ids: Collection[str]) -> None:
    """Remove messages from the directory of a run. Nothing is synced: a message that reappears is known to be taken.

    Args:
        run: the run's directory, open.
        signal_ids: the ids of the messages.
    """
    if not signal_ids:
        return
    with open_if_there(run.open, SIGNALS) as directory:
        if directory is not None:  # otherwise none was sent, or the run is being cleared
            for each in signal_ids:
                directory.discard(signal_name(each))


def _encode_signal(workflow_id: str, signal: Signal, seals: Seals) -> bytes:
    """Return the two lines of a message's file: a header with the seal of the other line, and the message."""
    extra, seal = ({}, None) if not seals.has_key else seals.make_seal(workflow_id, 0, new_token(16))
    with refused_as_encoding_error():
        head = _encode_body(
            {"flowckpt": "signal", "schema_version": SCHEMA_VERSION, "workflow_id": workflow_id, **extra}
        )
        body = _encode_body(signal.to_document())
    first, digest = lines.chain_line(head if seal is None else seal.authenticate(head, 0, lines.START), lines.START)
    second, _ = lines.chain_line(body if seal is None else seal.seal(body, 1, digest), digest)
    return first + second


def _encode_body(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))[:-1].encode("utf-8")


def _decode_signal(content: bytes, workflow_id: str, name: str, seals: Seals) -> tuple[Signal, LineSeal | None]:
    place = f"{SIGNALS}/{name}"
    first, _, rest = content.partition(b"\n")
    second, end, more = rest.partition(b"\n")
    digest = lines.verify_line(first, lines.START)
    if digest is None or not end or more or lines.verify_line(second, digest) is None:
        raise _damage_error(workflow_id, name, "its checksum does not match")
    head, body = first[: len(first) - lines.TRAILER], second[: len(second) - lines.TRAILER]
    try:
        header = json.loads(head + b"}")
        if header["workflow_id"] != workflow_id:
            raise _damage_error(workflow_id, name, f"it is for another run, {header['workflow_id']!r:.80}")
        check_schema(header["schema_version"])
        seal = seals.find_seal(workflow_id, 0, header, place)
        if seal is None:
            seals.check_plain(workflow_id, place)
        else:
            seal.verify(head, 0, lines.START)
            body = seal.open(body, 1, digest)
        signal = Signal.from_document(json.loads(body + b"}"))
    except SealBrokenError as error:
        raise _damage_error(workflow_id, name, str(error)) from error
    except (LookupError, TypeError, ValueError) as error:
        raise _damage_error(workflow_id, name, f"it is malformed: {error!r:.80}") from error
    if signal_name(signal.signal_id) != name:
        raise _damage_error(workflow_id, name, "it has the file name of another message")
    return signal, seal


def _damage_error(workflow_id: str, name: str, detail: str) -> CheckpointCorruptedError:
    return CheckpointCorruptedError(
        workflow_id,
        location=f"{SIGNALS}/{name}",
        detail=detail,
        remedy="Remove the file, and send the signal again. Nothing was changed.",
    )
