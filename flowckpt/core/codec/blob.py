"""Large values: stored once per content, next to the records that refer to them by digest."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

from flowckpt.core.codec.tags import Json, decode, dumps, encode
from flowckpt.core.records import LazyValue
from flowckpt.core.records.result import decode_held
from flowckpt.core.system import external
from flowckpt.errors import DecodingError

BLOB_SIZE = 64 * 1024
"""A value whose JSON text has this many bytes or more becomes a blob."""

Fetch = Callable[[str, int], bytes]
"""Reads the content of a blob from a store, by digest and size."""


TAG = b'"$'
"""A line of a record without these bytes has no tag: each tree in it is its own value."""
_MOVED_OUT: Any = object()


class Line(Protocol):
    """A line of a record, which its store can read again."""

    @property
    def opened(self) -> bytes:
        """The line: `{"step_results":[…`."""
        ...


class Recorded(LazyValue):
    """A small recorded value: kept as its tree, and decoded at each access.

    Args:
        tree: its tree.
        line: the line that it was read from, if nothing in it needs decoding.
        place: the place of its result among those of that line.
    """

    # NOTE: an untagged tree is passed to the workflow as parsed, without a copy or decoding, and read again from its
    # line only at a later access; measured by `python -m benchmarks --only users`.
    __slots__ = ("_line", "_place", "_tree")

    def __init__(self, tree: Json, line: Line | None = None, place: int = 0) -> None:
        self._tree = tree
        self._line = line
        self._place = place

    def __repr__(self) -> str:
        return f"<recorded {self.tree!r:.200}>"

    @property
    def tree(self) -> Json:
        """The value's tree; read again if `take` has returned it."""
        return self._tree if self._tree is not _MOVED_OUT else self._read_again()

    @property
    def is_untagged(self) -> bool:
        """Whether the tree is known to be the value."""
        return self._line is not None

    def value(self) -> Any:
        """Decode the tree."""
        return decode(self.tree)

    def take(self) -> Any:
        """Return an untagged value for a caller that may change it; a later access reads it again."""
        tree, self._tree = self._tree, _MOVED_OUT
        return tree if tree is not _MOVED_OUT else self._read_again()

    def _read_again(self) -> Json:
        assert self._line is not None
        return json.loads(self._line.opened)["step_results"][self._place].get("output")


class Blob(LazyValue):
    """A large value, named by the SHA-256 of its JSON text.

    Its content is kept in memory until a store has saved it, and is read from there afterwards, so that large outputs
    do not accumulate in memory.

    Attributes:
        digest: SHA-256 of the content, in hex.
        size: the content's length in bytes.
    """

    __slots__ = ("_content", "_fetch", "digest", "size")

    def __init__(self, digest: str, size: int, *, content: bytes | None = None, fetch: Fetch | None = None) -> None:
        self.digest = digest
        self.size = size
        self._content = content
        self._fetch = fetch

    def __repr__(self) -> str:
        return f"<large value of {self.size} bytes, sha256:{self.digest[:12]}>"

    def content(self) -> bytes:
        """Return the JSON text, from memory or from the store.

        Raises:
            DecodingError: no store has it.
        """
        if self._content is not None:
            return self._content
        if self._fetch is None:
            raise DecodingError(
                f"the large value sha256:{self.digest} is not available", remedy="Load it from its store."
            )
        return self._fetch(self.digest, self.size)

    def release_content(self, fetch: Fetch) -> None:
        """Release the content: the store has saved it, and `fetch` reads it."""
        self._fetch = fetch
        self._content = None

    @property
    def tree(self) -> Json:
        """The value's tree, read again."""
        try:
            return json.loads(self.content())
        except (ValueError, RecursionError) as error:
            raise DecodingError(f"the large value sha256:{self.digest} is not JSON: {error}") from error

    def value(self) -> Any:
        """Read and decode the content."""
        return decode(self.tree)

    def reference(self) -> Json:
        """Return the reference that a record has instead of the value."""
        return {"$blob": [self.digest, self.size]}


def pack(tree: Json) -> tuple[str, Blob | None]:
    """Return the recorded text of a tree, and its blob if it is large."""
    text = dumps(tree)
    if len(text) * 4 < BLOB_SIZE or len(data := text.encode()) < BLOB_SIZE:
        return text, None
    blob = Blob(external.hashlib.sha256(data).hexdigest(), len(data), content=data)
    return dumps(blob.reference()), blob


def pack_value(tree: Json) -> LazyValue:
    """Return a tree in recorded form: as a blob if it is large."""
    blob = pack(tree)[1]
    return Recorded(tree) if blob is None else blob


def unpack(held: Json, fetch: Fetch | None) -> LazyValue:
    """Return a recorded value, which is decoded only when it is accessed.

    Args:
        held: the tree in the record, or the reference to a blob.
        fetch: reads blobs from the store that the record came from.
    """
    if type(held) is dict and len(held) == 1 and "$blob" in held:
        body = held["$blob"]
        if not _is_reference(body):
            raise DecodingError(f"a record names a large value by {body!r:.80}")
        return Blob(body[0], body[1], fetch=fetch)
    return Recorded(held)


def _is_reference(body: Any) -> bool:
    return (
        isinstance(body, list)
        and len(body) == 2
        and isinstance(body[0], str)
        and len(body[0]) == 64
        and not body[0].strip("0123456789abcdef")
        and type(body[1]) is int
        and body[1] >= BLOB_SIZE
    )


def plain_tree(held: Any, place: str) -> Json:
    """Return the tree of a recorded value, reading a large one from its store."""
    return held.tree if isinstance(held, Recorded | Blob) else encode(decode_held(held), place)
