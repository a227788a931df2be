"""What the attempts of a run hold, read as it is asked for: from the newest on, and some below it in the same go."""

from __future__ import annotations

from functools import partial

import attrs

from flowckpt.stores.objects.attempt import Content, read_attempt
from flowckpt.stores.objects.bucket import Bucket
from flowckpt.stores.objects.keys import RunKeys

_AT_ONCE = 16


@attrs.define(eq=False, repr=False)
class Contents:
    """Reads the attempts of a run, each once.

    What an attempt goes on from has ended before it. One that seems not to have was read beside that attempt or earlier,
    and may have grown meanwhile; it is read again, once, because its end may be lost.

    Attributes:
        bucket: the bucket.
        workflow_id: the run.
        keys: its keys.
        with_bundles: whether to read bundles in place of the records in them.
        known: what was read, by the root of an attempt; it is added to.
        begun: the newest attempt that has a record, once that is known.
    """

    bucket: Bucket
    workflow_id: str
    keys: RunKeys
    with_bundles: bool
    known: dict[str, Content]
    begun: int = 0
    _settled: set[int] = attrs.field(init=False, factory=set)

    def of(self, number: int) -> Content:
        """Return what an attempt holds.

        Args:
            number: the attempt.

        Raises:
            CheckpointCorruptedError: a record is missing, or cannot be read.
            ChangedMeanwhileError: it was removed while it was being read.
        """
        root = self.place(number)
        held = self.known.get(root)
        if held is None:
            self._read_from(number)
        elif held.end is None and number < self.begun and number not in self._settled:
            self.known[root] = self._read(number)
        if number < self.begun:
            self._settled.add(number)
        return self.known[root]

    def text(self, number: int) -> bytes:
        """Return an attempt as the text of a segment; see `of`."""
        return self.of(number).text

    def place(self, number: int) -> str:
        """Return where an attempt stands."""
        return self.keys.at(number).root

    def _read_from(self, number: int) -> None:
        """Read an attempt and, as most runs continue one after the other, as many below it as were read before."""
        lower = [each for each in self.keys.attempts if each <= number and self.place(each) not in self.known]
        batch = lower[-min(len(self.known) + 1, _AT_ONCE) :]
        read = self.bucket.each([partial(self._read, each) for each in batch])
        self.known.update(zip(map(self.place, batch), read, strict=True))

    def _read(self, number: int) -> Content:
        return read_attempt(self.bucket, self.keys.at(number), self.workflow_id, with_bundles=self.with_bundles)
