"""A bucket: the requests that the store makes, their retries, and their errors.

Only this module uses the library `obstore`. The calls block (the library's asynchronous ones can abort the process), and
release the interpreter lock while they wait. The library's threads do not survive a fork, so a forked child is refused.

The safety of a run depends on one kind of write: creating an object. A create can always be retried: if the object exists
by then, it is read, and is ours if it has our content. So a lost reply leaves no doubt.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from itertools import islice
from time import monotonic, sleep
from typing import Any, TypeVar

import attrs
import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import MemoryStore

from flowckpt.core.system.declared import shell_word
from flowckpt.errors import CheckpointStorageError
from flowckpt.stores.objects.layout import MARK

# What the errors of the library mean. Most of them have the same class, so their text must be parsed.


_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>(?:\s*<Message>([^<]*)</Message>)?")
_NO_CREDENTIALS = ("169.254.169.254", "metadata.google.internal")
_SERVER = re.compile(r"Error performing \w+ (https?://[^/\s]+)")
_AGAIN = {"408", "425", "429"}
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")


class Failure(Enum):
    """The known facts about a failed request.

    Attributes:
        PASSING: a retry may succeed; whether the request was executed is unknown.
        REFUSED: it was not executed, and a retry would fail, too.
        UNKNOWN: nothing is known.
    """

    PASSING = "passing"
    REFUSED = "refused"
    UNKNOWN = "unknown"


def classify_failure(error: Exception) -> Failure:
    """Return what an error of the library means.

    Args:
        error: the error.
    """
    refusals = (
        PermissionDeniedError,
        UnauthenticatedError,
        FileNotFoundError,
        InvalidPathError,
        NotSupportedError,
        UnknownConfigurationKeyError,
        ValueError,
    )
    if isinstance(error, refusals):
        return Failure.REFUSED
    text = str(error)
    if any(place in text for place in _NO_CREDENTIALS) or "builder error" in text:
        return Failure.REFUSED
    if status := _STATUS.search(text):
        is_passing = status[1][0] == "5" and status[1] != "501"
        return Failure.PASSING if is_passing or status[1] in _AGAIN else Failure.REFUSED
    if isinstance(error, OSError) or "HTTP error" in text or "error decoding response body" in text:
        return Failure.PASSING
    return Failure.UNKNOWN


def explain_failure(error: Exception) -> tuple[str, str]:
    """Return the message of an error of the library in one line, and a remedy if one is known.

    Args:
        error: the error.
    """
    text = str(error).partition("\n\nDebug source")[0]
    if any(place in text for place in _NO_CREDENTIALS):
        return (
            "no credentials were found in the environment",
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or what your provider has), or use a role of the machine.",
        )
    status, code = _STATUS.search(text), _CODE.search(text)
    if status:
        message = f"the server answered {status[1]}"
        if code:
            message += f" {code[1]}" + (f" ({code[2].strip()})" if code[2] else "")
        if code and code[1] in _NO_BUCKET:
            return message, "Create the bucket first, or correct its name."
        return message, "Correct the credentials or their rights." if status[1] in ("401", "403") else ""
    if "builder error" in text:
        return "the request could not be made", "For a server without TLS, give the endpoint as 'http://…'."
    if "HTTP error" in text and (server := _SERVER.search(text)):
        when = " in time" if "TimedOut" in str(error) else ""
        return f"{server[1]} did not answer{when}", ""
    return text.partition("\n")[0][:300] or type(error).__name__, ""


S = TypeVar("S")
T = TypeVar("T")
PAGE = 1000
_THREADS = 16
_WINDOW = 4 * _THREADS
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds

_library_of: list[int] = []
"""The process that first used the library: only it has the library's threads."""


@attrs.frozen
class ListedObject:
    """An object in a list.

    Attributes:
        key: its key.
        modified_at: the time of the last write, by the server's clock.
    """

    key: str
    modified_at: datetime


class _NotYetThereError(Exception):
    """A create found that the object exists, but a read did not: another request is in progress. Try again."""


class Bucket:
    """A bucket, or the part of it under a prefix.

    Args:
        driver: a store of `obstore`.
        shown: its name in messages.
        patience_seconds: how long to retry a request after temporary failures.
    """

    def __init__(self, driver: Any, shown: str, *, patience_seconds: float) -> None:
        self.shown = shown
        self._driver = driver
        self._patience = patience_seconds
        self._threads = 1 if isinstance(driver, MemoryStore) else _THREADS  # nobody waits for memory
        self._latest = _LONG_AGO, 0.0

    def __str__(self) -> str:
        return self.shown

    # --- writing ---------------------------------------------------------------------------------------------------

    def create(
        self,
        key: str,
        body: bytes,
        workflow_id: str,
        operation: str,
        *,
        reports_doubt: bool = True,
        patience: float | None = None,
    ) -> bytes | None:
        """Create an object that must not exist.

        Args:
            key: its key.
            body: its content.
            workflow_id: the run, for errors.
            operation: the operation, for errors.
            reports_doubt: whether the error reports that a failed request may have been executed.
            patience: how long to retry after temporary failures, in seconds; the bucket's value by default.

        Returns:
            None if the object is ours now; else the content that another process has put there.

        Raises:
            CheckpointStorageError: the request failed; the error says whether the object may exist.
        """

        def put() -> bytes | None:
            try:
                obstore.put(self._driver, key, body, mode="create", use_multipart=False)
            except AlreadyExistsError as error:  # or a conflict with a request in progress
                stored = self._read(key)
                if stored is None:
                    raise _NotYetThereError("another request for the same object is in progress") from error
                return None if stored == body else stored
            return None

        return self._retry_request(workflow_id, operation, put, is_write=reports_doubt, patience=patience)

    def create_all(self, bodies: Sequence[tuple[str, Callable[[], bytes]]], workflow_id: str, operation: str) -> None:
        """Create objects whose content does not depend on their creator; existing ones stay unchanged.

        Args:
            bodies: the keys, each with a function that returns the content.
            workflow_id: the run, for errors.
            operation: the operation, for errors.
        """

        def create(item: tuple[str, Callable[[], bytes]]) -> None:
            key, body = item[0], item[1]()

            def put() -> None:
                with contextlib.suppress(AlreadyExistsError):
                    obstore.put(self._driver, key, body, mode="create", use_multipart=False)

            self._retry_request(workflow_id, operation, put)

        self.call_for_each(create, bodies)

    def overwrite(self, key: str, body: bytes, workflow_id: str, operation: str) -> None:
        """Put an object that nothing depends on, without retries."""
        put = partial(obstore.put, self._driver, key, body, mode="overwrite", use_multipart=False)
        self._retry_request(workflow_id, operation, put, patience=0.0)

    def copy(self, source: str, target: str, workflow_id: str) -> bool:
        """Copy an object within the bucket; return whether the source exists."""

        def copy() -> bool:
            try:
                obstore.copy(self._driver, source, target)
            except FileNotFoundError as error:
                _check_bucket(error)
                return False
            return True

        return self._retry_request(workflow_id, "share", copy)

    def delete(self, keys: Sequence[str], workflow_id: str, operation: str) -> None:
        """Delete objects; missing ones are ignored."""

        def delete(page: Sequence[str]) -> None:
            try:
                obstore.delete(self._driver, list(page))
            except FileNotFoundError:
                for key in page:
                    try:
                        obstore.delete(self._driver, key)
                    except FileNotFoundError as error:
                        _check_bucket(error)

        for start in range(0, len(keys), PAGE):
            self._retry_request(workflow_id, operation, partial(delete, keys[start : start + PAGE]))

    def delete_under(self, prefix: str, workflow_id: str, operation: str = "clear") -> None:
        """Delete all objects under a prefix."""
        self.delete(self.list_keys(prefix, workflow_id), workflow_id, operation)

    # --- reading ---------------------------------------------------------------------------------------------------

    def get(
        self, key: str, workflow_id: str, operation: str = "read", *, patience: float | None = None
    ) -> bytes | None:
        """Return the content of an object; None if it does not exist."""
        return self._retry_request(workflow_id, operation, lambda: self._read(key), patience=patience)

    def get_all(self, keys: Sequence[str], workflow_id: str) -> Iterator[bytes | None]:
        """Return the contents of objects in the order of the keys: several are read at a time, and never all at once."""
        return self.map(lambda key: self.get(key, workflow_id), keys)

    def map(self, function: Callable[[S], T], items: Sequence[S]) -> Iterator[T]:
        """Call a function that waits for this bucket for several items in parallel, and return its results in their order."""
        if len(items) < 3 or self._threads == 1:  # a thread costs more
            yield from (function(item) for item in items)
            return
        with ThreadPoolExecutor(min(self._threads, len(items)), thread_name_prefix="flowckpt-objects") as pool:
            pending = iter(items)
            futures = deque(pool.submit(function, item) for item in islice(pending, _WINDOW))
            try:
                while futures:
                    yield futures.popleft().result()
                    futures.extend(pool.submit(function, item) for item in islice(pending, 1))
            finally:
                for future in futures:
                    future.cancel()

    def call_for_each(self, function: Callable[[S], object], items: Sequence[S]) -> None:
        """Call a function that waits for this bucket for several items in parallel."""
        for _ in self.map(function, items):
            pass

    def list_keys(self, prefix: str, workflow_id: str) -> list[str]:
        """Return the keys under a prefix, in order."""
        return [listed.key for listed in self.list_objects(prefix, workflow_id)]

    def list_objects(
        self, prefix: str, workflow_id: str, *, after: str | None = None, most: int | None = None
    ) -> list[ListedObject]:
        """Return the objects under a prefix, ordered by key.

        Args:
            prefix: the prefix, without a slash at its end.
            workflow_id: the run, for errors.
            after: only keys after this one.
            most: stop after this many, or a few more.
        """

        def list_pages() -> list[ListedObject]:
            objects: list[ListedObject] = []
            for page in obstore.list(self._driver, prefix, offset=after, chunk_size=PAGE):
                objects += [ListedObject(each["path"], each["last_modified"]) for each in page]
                self._learn_time(each.modified_at for each in objects[-len(page) :])
                if most is not None and len(objects) >= most:
                    break
            return sorted(objects, key=lambda each: each.key)

        return self._retry_request(workflow_id, "list", list_pages)

    def list_names(self, prefix: str, workflow_id: str) -> list[str]:
        """Return the first parts of the keys under a prefix, each once."""

        def list_level() -> list[str]:
            level = obstore.list_with_delimiter(self._driver, prefix)
            paths = [*level["common_prefixes"], *(each["path"] for each in level["objects"])]
            return sorted({path.rstrip("/").rpartition("/")[2] for path in paths})

        return self._retry_request(workflow_id, "list", list_level)

    def estimate_earliest_time(self) -> datetime:
        """Return a lower bound of the server's clock, from the objects listed so far, without a request."""
        newest, seen = self._latest
        return newest + timedelta(seconds=monotonic() - seen)

    def _learn_time(self, moments: Iterable[datetime]) -> None:
        newest = max(moments, default=_LONG_AGO)
        if newest > self._latest[0] and newest > self.estimate_earliest_time():
            self._latest = newest, monotonic()

    def read_server_time(self, workflow_id: str) -> datetime:
        """Return the time by the server's clock, from an object written for this purpose."""
        key = f"clock/{secrets.token_hex(8)}"

        def put_and_look() -> datetime:
            obstore.put(self._driver, key, b"what time is it?\n", use_multipart=False)
            modified_at: datetime = obstore.head(self._driver, key)["last_modified"]
            return modified_at

        moment = self._retry_request(workflow_id, "acquire", put_and_look)
        self.delete([key], workflow_id, "acquire")
        return moment

    # --- failures --------------------------------------------------------------------------------------------------

    def _read(self, key: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._driver, key).bytes())
        except FileNotFoundError as error:
            _check_bucket(error)
            return None

    def _retry_request(
        self,
        workflow_id: str,
        operation: str,
        request: Callable[[], T],
        *,
        is_write: bool = False,
        patience: float | None = None,
    ) -> T:
        """Retry a request until it succeeds or the retry time is over."""
        self._check_process(workflow_id, operation)
        until = monotonic() + (self._patience if patience is None else patience)
        pause, is_in_doubt = _FIRST_PAUSE, False
        while True:
            try:
                return request()
            except (BaseError, OSError, ValueError, _NotYetThereError) as error:
                failure = Failure.PASSING if isinstance(error, _NotYetThereError) else classify_failure(error)
                is_in_doubt = is_in_doubt or failure is not Failure.REFUSED
                rest = until - monotonic()
                if failure is not Failure.PASSING or rest <= 0:
                    raise self._request_error(
                        error, workflow_id, operation, is_in_doubt=is_write and is_in_doubt
                    ) from error
                sleep(min(rest, pause * random.uniform(0.5, 1.0)))  # noqa: S311 - spreads concurrent retries
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _request_error(
        self, error: Exception, workflow_id: str, operation: str, *, is_in_doubt: bool
    ) -> CheckpointStorageError:
        task = f"{operation} run {workflow_id!r}" if workflow_id else operation
        detail, remedy = explain_failure(error)
        return CheckpointStorageError(
            f"the store in {self.shown} could not {task}: {detail}"
            + ("; it is unknown whether the object was written" if is_in_doubt else ""),
            workflow_id=workflow_id,
            operation=operation,
            is_outcome_unknown=is_in_doubt,
            remedy=remedy
            or (
                f"Run 'flowckpt resume {shell_word(workflow_id)}': it finds out."
                if is_in_doubt
                else "Acknowledged checkpoints are not lost."
            ),
        )

    def _check_process(self, workflow_id: str, operation: str) -> None:
        if not _library_of:
            _library_of.append(os.getpid())
        if _library_of[0] != os.getpid():
            raise CheckpointStorageError(
                f"the store in {self.shown} cannot be used here: this process was forked from one that uses object "
                "storage, and the library's threads do not survive a fork",
                workflow_id=workflow_id,
                operation=operation,
                remedy="Start processes with 'spawn' or 'forkserver' (multiprocessing.get_context).",
            )


def _check_bucket(error: Exception) -> None:
    """Raise if the bucket is missing, and not just the object."""
    if any(code in str(error) for code in _NO_BUCKET):
        raise error


# Does the server honour the condition on which all safety depends? This is tested before the first write of a process.
#
# Some S3-compatible servers accept `If-None-Match: *` and silently overwrite anyway. With those, two
# owners of a run would both get their checkpoint acknowledged.


def check_conditions(bucket: Bucket) -> None:
    """Refuse a server that overwrites objects despite the condition that they must not exist.

    The mark of the store is created, and again if that succeeds. It is permanent, so for all but the first process this is
    one request, which the server must reject.

    Raises:
        CheckpointStorageError: the server does not honour the condition, or a request failed.
    """
    for _ in range(2):
        mine = b'{"flowckpt":"store","token":"%b"}\n' % secrets.token_hex(8).encode()
        if bucket.create(MARK, mine, "", "open", reports_doubt=False) is not None:
            return
    raise CheckpointStorageError(
        f"the server of {bucket} ignores the condition If-None-Match: * and overwrites existing objects, so two owners of a "
        "run could overwrite each other's checkpoints",
        operation="open",
        remedy="Use a server that supports conditional writes: S3 itself, Ceph, MinIO, Garage; not 'rclone serve s3'.",
    )
