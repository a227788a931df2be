"""The checkpoints in the lines of a file that anybody may have made: each line is proved before it is believed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any

import attrs

from flowckpt.checkpoint import CheckpointData, History
from flowckpt.checkpoint.history import CHAIN_START
from flowckpt.codec import Json
from flowckpt.codec.blob import BLOB_SIZE, Fetch
from flowckpt.codec.checkpoints import CARRIED, check_schema, decode_head
from flowckpt.codec.results import decode_result
from flowckpt.errors import DecodingError
from flowckpt.portable.limits import ImportLimits
from flowckpt.portable.lines import FORMAT, Counts, blob_in, end_line, result_in
from flowckpt.portable.names import check_name
from flowckpt.portable.shape import check_head, check_result, is_count
from flowckpt.portable.strict_json import MalformedError, strict_json


@attrs.frozen
class Header:
    """What the first line of an exported run says.

    Attributes:
        workflow_id: the run, as the file has it; not checked yet.
        workflow_name: its workflow.
    """

    workflow_id: Any
    workflow_name: str


class RunReader:
    """Reads the lines of an exported run, in their order, and refuses the first that cannot be.

    Args:
        limits: how much is taken.
        fetch: reads a large value again, whose line was read.

    Attributes:
        header: what the first line says, once it was read.
        line: the number of the line that is being read.
        places: where the content of each large value begins in the file.
        identity: SHA-256 over the lines between the first and the last, but those of large values.
    """

    def __init__(self, limits: ImportLimits, fetch: Fetch | None = None) -> None:
        self.header: Header | None = None
        self.line = 0
        self.places: dict[str, tuple[int, int]] = {}
        self.identity: Any = sha256()
        self._limits = limits
        self._fetch = fetch
        self._whole = sha256()
        self._offset = 0
        self._unnamed: set[str] = set()
        self._counts = Counts()
        self._attempt = 0
        self._sequence = 0
        self._saved = 0  # results that the last checkpoint of this attempt holds
        self._has_saved = False
        self._history = History()
        self._chains = [CHAIN_START]
        self._carried: dict[str, Json] = {}
        self._latest: CheckpointData | None = None

    def checkpoints(self, lines: Iterable[bytes]) -> Iterator[CheckpointData]:
        """Return the checkpoints, attempt by attempt and the oldest first. What is left to its end was all there.

        Args:
            lines: the lines of the file, each with its line feed.

        Raises:
            MalformedError: a line is not what must stand there, or something does not match its digest.
            UnsupportedSchemaError: a newer flowckpt has written it.
        """
        is_ended = False
        for line in lines:
            self.line += 1
            if self.line > self._limits.max_records:
                raise MalformedError(f"it has more than {self._limits.max_records} lines")
            if is_ended:
                raise MalformedError("something stands behind the end")
            if line[-1:] != b"\n":
                raise MalformedError("it ends in the middle of a line: the file was cut")
            if self.header is None:
                self._read_header(line)
            elif line.startswith(b'{"end":'):
                self._read_end(line)
                is_ended = True
            else:
                data = self._read(line)
                if data is not None:
                    yield data
            self._whole.update(line)
            self._offset += len(line)
        if not is_ended:
            raise MalformedError("it has no end: the file was cut")

    def _read_header(self, line: bytes) -> None:
        document = strict_json(line)
        if type(document) is not dict or document.get("flowckpt") != FORMAT:
            raise MalformedError("it is no run that flowckpt has exported")
        check_schema(document.get("schema_version"))
        name = check_name(document.get("workflow_name"), "the name of a workflow")
        self.header = Header(document.get("workflow_id"), name)

    def _read(self, line: bytes) -> CheckpointData | None:
        if (found := blob_in(line[:-1])) is not None:
            self._read_blob(line, *found)
            return None
        self.identity.update(line)
        if (encoded := result_in(line[:-1])) is not None:
            self._read_result(encoded)
            return None
        document = strict_json(line)
        keys = list(document) if type(document) is dict else []
        if keys == ["attempt", "keeps"]:
            self._begin_attempt(document["attempt"], document["keeps"])
            return None
        if keys == ["checkpoint", "results", "chain"]:
            return self._read_checkpoint(document)
        raise MalformedError("it is none of the lines that an exported run has")

    def _begin_attempt(self, attempt: Json, keeps: Json) -> None:
        self._check_finished()
        if not is_count(attempt, self._attempt + 1) or attempt > self._limits.max_attempts:
            raise MalformedError(
                f"attempt {attempt!r:.40} cannot follow {self._attempt} (at most {self._limits.max_attempts})"
            )
        if not is_count(keeps) or keeps > self._saved:
            raise MalformedError(f"attempt {attempt} keeps {keeps!r:.40} of {self._saved} results")
        self._attempt, self._saved, self._has_saved, self._carried = attempt, keeps, False, {}
        self._history = self._history.forked(keeps)
        del self._chains[keeps + 1 :]
        self._counts = attrs.evolve(self._counts, attempts=self._counts.attempts + 1)

    def _check_finished(self) -> None:
        """Refuse an end of an attempt that is not behind a checkpoint."""
        if self._attempt and (not self._has_saved or len(self._chains) - 1 != self._saved):
            raise MalformedError(f"attempt {self._attempt} ends without a checkpoint")

    def _read_blob(self, line: bytes, digest: str, size: int, start: int) -> None:
        content = memoryview(line)[start:-2]
        if size < BLOB_SIZE or len(content) != size or line[-2:] != b"}\n" or sha256(content).hexdigest() != digest:
            raise MalformedError(f"the large value {digest} does not match its digest")
        if digest in self.places:
            raise MalformedError(f"the large value {digest} stands there twice")
        if self._fetch is None:  # when it is read again, it is known to be JSON
            strict_json(bytes(content))
        self.places[digest] = (self._offset + start, size)
        self._unnamed.add(digest)
        self._counts = attrs.evolve(self._counts, blobs=self._counts.blobs + 1)

    def _read_result(self, encoded: bytes) -> None:
        if not self._attempt:
            raise MalformedError("a result stands before the first attempt")
        document = strict_json(encoded)
        check_result(document)
        self._check_reference(document.get("output"))
        try:
            result, blobs = decode_result(document, self._fetch)
        except DecodingError as error:
            raise MalformedError(error.message) from None
        self._history.append(result, encoded, blobs)
        self._chains.append(sha256(self._chains[-1] + encoded).digest())
        self._counts = attrs.evolve(self._counts, results=self._counts.results + 1)

    def _check_reference(self, held: Json) -> None:
        if type(held) is dict and "$blob" in held:
            named = held["$blob"]
            if type(named) is not list or not named or type(named[0]) is not str:
                raise MalformedError(f"a large value is named by {named!r:.80}")
            if len(held) != 1 or named[1:] != [self.places.get(named[0], (0, -1))[1]]:
                raise MalformedError(f"the large value {named[0]:.64} is named, and does not stand before")
            self._unnamed.discard(named[0])

    def _read_checkpoint(self, document: Mapping[str, Json]) -> CheckpointData:
        said, results = document["checkpoint"], len(self._chains) - 1
        try:
            check_head(said)
            if document["results"] != results or document["chain"] != self._chains[-1].hex():
                raise MalformedError("the results before it do not match its digest")
            if said["attempt"] != self._attempt:
                raise MalformedError(f"a checkpoint of attempt {said['attempt']} stands in attempt {self._attempt}")
            if said["sequence"] <= self._sequence:
                raise MalformedError(f"checkpoint {said['sequence']} stands behind {self._sequence}")
            missing = [name for name in CARRIED if name not in said and name not in self._carried]
            if missing:
                raise MalformedError(f"the first checkpoint of attempt {self._attempt} has no {missing[0]!r}")
            for name in ("inputs", "snapshot", "output"):
                self._check_reference(said.get(name))
            for partial in said.get("partial", {}).values():
                self._check_reference(partial["state"])
            if type(said.get("inputs", {})) is not dict:
                raise MalformedError("the inputs of a checkpoint are no object")
            self._carried.update({name: said[name] for name in CARRIED if name in said})
            data = decode_head({**self._carried, **said}, self._history.view(results), self._fetch)
        except DecodingError as error:
            raise MalformedError(error.message) from None
        if data.extra.keys() & {"schema_version", "step_results", "results", "sha256", "deletes", "adopts"}:
            raise MalformedError("a checkpoint has a field that belongs elsewhere")
        before = self._latest if self._has_saved else None
        if before is not None:  # a store writes once what is the very same object
            same = {name: getattr(before, held) for name, held in _SHARED.items() if name not in said}
            data = attrs.evolve(data, **same) if same else data
        self._sequence, self._saved, self._has_saved, self._latest = data.sequence, results, True, data
        self._counts = attrs.evolve(self._counts, checkpoints=self._counts.checkpoints + 1)
        return data

    def _read_end(self, line: bytes) -> None:
        self._check_finished()
        if not self._counts.checkpoints:
            raise MalformedError("it has no checkpoint")
        if line != end_line(self._counts, self._whole.hexdigest()):
            raise MalformedError("what stands before its end does not match the digest there")
        if self._unnamed:
            raise MalformedError(f"the large value {min(self._unnamed)} belongs to nothing")


_SHARED = {"inputs": "held_inputs", "metadata": "metadata"}
