"""What a run does not prove with the key: what somebody takes for true who trusts it all the same."""

from __future__ import annotations

import attrs

from flowckpt.core.codec.blob import Fetch
from flowckpt.core.system.filesystem import FileSystem
from flowckpt.errors import CheckpointCorruptedError, ForeignRecordError, UnauthenticatedRecordError, WrongKeyError
from flowckpt.stores.file.directory import read_file, read_image
from flowckpt.stores.file.head import what_is_cut
from flowckpt.stores.file.layout import HEAD, segment_name
from flowckpt.stores.file.signals import read_signals
from flowckpt.stores.log.image import RunImage, opened_header
from flowckpt.stores.log.sealing.protection import Seals


@attrs.frozen
class Doubts:
    """What a run proves with the key, and what it does not.

    Attributes:
        workflow_id: the run.
        checkpoints: how many it has, as it is now.
        results: how many results, likewise.
        is_proved: whether it proves itself as it is, so that nothing is to be taken on trust.
        plain: the segments of it that were written without a key.
        sealed: the segments of it that were opened with the key, and hold.
        lost: what is known to be missing at its end, or why nobody can tell; empty where nothing is.
        message: why its messages are refused, and stay so; empty where they are not.
    """

    workflow_id: str
    checkpoints: int
    results: int
    is_proved: bool
    plain: tuple[str, ...] = ()
    sealed: tuple[str, ...] = ()
    lost: str = ""
    message: str = ""


def doubts_about(filesystem: FileSystem, directory: int, workflow_id: str, fetch: Fetch, seals: Seals) -> Doubts:
    """Return what a run proves, and what it does not.

    Args:
        filesystem: the calls.
        directory: the run's directory, open.
        workflow_id: the run.
        fetch: reads large values.
        seals: the seals of the store, which was told to trust.

    Raises:
        CheckpointCorruptedError: what is sealed does not open, or a record is damaged: that cannot be trusted.
        FileNotFoundError: it was cleared or compacted meanwhile; look again.
    """
    head = read_file(filesystem, directory, HEAD) if filesystem.exists(directory, HEAD) else None
    image = read_image(filesystem, directory, workflow_id, fetch, seals=seals)
    strict = seals.not_trusting()
    try:
        read_image(filesystem, directory, workflow_id, fetch, seals=strict)
        is_proved = True
    except (UnauthenticatedRecordError, CheckpointCorruptedError, WrongKeyError, ForeignRecordError):
        is_proved = False
    plain: list[str] = []
    sealed: list[str] = []
    for number in sorted({record.file for record in image.records}):
        _, seal = opened_header(workflow_id, number, read_file(filesystem, directory, segment_name(number)), seals)
        (plain if seal is None else sealed).append(segment_name(number))
    return Doubts(
        workflow_id,
        len(image.checkpoints()),
        len(image.history.results),
        is_proved,
        tuple(plain),
        tuple(sealed),
        "" if is_proved else _lost(image, head, seals),
        _refused_message(filesystem, directory, workflow_id, strict),
    )


def _lost(image: RunImage, head: bytes | None, seals: Seals) -> str:
    try:
        found = what_is_cut(image, head, seals)
    except (WrongKeyError, ForeignRecordError) as error:
        found = f"the word of how far the run has come cannot be read: {error.message}"
    return f"cannot be told: {found}" if found.startswith("the word") else found


def _refused_message(filesystem: FileSystem, directory: int, workflow_id: str, strict: Seals) -> str:
    try:
        read_signals(filesystem, directory, workflow_id, strict)
    except (UnauthenticatedRecordError, CheckpointCorruptedError, WrongKeyError, ForeignRecordError) as error:
        return error.message
    return ""
