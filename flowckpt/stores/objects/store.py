"""Checkpoints in a bucket.

::

    runs/RUN/000001.000000000002/records/000000000017   one object per checkpoint, created conditionally

The protocol is in `claim` (claims and clears), `run_writer` (saves) and `attempt` (reading).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import obstore.store
from obstore.exceptions import BaseError

from flowckpt.errors import StoreSpecError
from flowckpt.stores.base import StoreBase
from flowckpt.stores.objects.bucket import Bucket
from flowckpt.stores.objects.runs import ObjectRuns
from flowckpt.stores.runs_base import BlockingStore, delegate_to_runs

if TYPE_CHECKING:
    from flowckpt.core.system.clock import Clock


class ObjectCheckpointStore(BlockingStore[ObjectRuns]):
    """Stores checkpoints as immutable objects in object storage; needs `flowckpt[s3]`.

    Args:
        place: `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`, with the options `endpoint`,
            `region` and `request_seconds`; or a store of the library obstore, for other credentials.
        lease_seconds: how long a run stays owned without a heartbeat of an owner on another machine.
        patience_seconds: how long to retry requests after temporary failures.
        clock: the time, for tests.
    """

    def __init__(
        self,
        place: Any,
        *,
        lease_seconds: float = 30.0,
        patience_seconds: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        driver, shown = open_driver(place) if isinstance(place, str) else (place, repr(place))
        self.runs = ObjectRuns(
            Bucket(driver, shown, patience_seconds=patience_seconds), lease_seconds=lease_seconds, clock=clock
        )

    def __repr__(self) -> str:
        return f"ObjectCheckpointStore({str(self.runs.bucket)!r})"

    live_seconds = 10.0  # each note costs a request

    last_seen = delegate_to_runs(StoreBase.last_seen)
    make_savable = delegate_to_runs(StoreBase.make_savable)


# The address of a bucket: `s3://bucket/prefix`, with options, never with credentials.
#
# ==================  =======================================================================================
# `endpoint=URL`      another server than the provider's own; `http://…` allows it to be without TLS
# `region=NAME`       the region
# `request_seconds=N`  how long one request may take; 60 by default
# ==================  =======================================================================================
#
# Credentials come from the environment, as for the provider's own tools; only the library reads them.

SCHEMES = ("s3", "gs", "az")
LOCAL = "objects+file"
_OPTIONS = ("endpoint", "region", "request_seconds", "allow_unsafe")
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


def open_driver(url: str) -> tuple[Any, str]:
    """Return the library's store for a URL, and its name in messages.

    Args:
        url: the URL.

    Raises:
        StoreSpecError: it is not a URL of a bucket, has an unknown option, or contains a password.
    """
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
    if "@" in parts.netloc:
        raise StoreSpecError(
            f"the address of {shown} contains credentials",
            spec=shown,
            remedy="Pass credentials in the environment, for example in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
        )
    options = _parse_options(parts.query, shown)
    if parts.scheme == LOCAL:
        return _open_local(parts.path, shown, is_accepted=options.get("allow_unsafe") == "true"), shown
    if parts.scheme not in SCHEMES or not parts.netloc:
        raise StoreSpecError(
            f"{shown!r} is not the address of a bucket",
            spec=shown,
            remedy="Write 's3://bucket/prefix', 'gs://bucket/prefix' or 'az://container/prefix'.",
        )
    config = {name: options[name] for name in ("endpoint", "region") if name in options}
    try:
        from_url: Any = obstore.store.from_url  # it has one overload per provider
        driver = from_url(
            f"{parts.scheme}://{parts.netloc}{parts.path}",
            client_options={
                "connect_timeout": timedelta(seconds=5),
                "timeout": timedelta(seconds=_parse_seconds(options, shown)),
                "allow_http": _is_without_tls(options),
            },
            retry_config={"max_retries": 0},  # `Bucket` does the retries
            **config,
        )
    except (BaseError, ValueError) as error:
        detail = str(error).partition("\n")[0]
        raise StoreSpecError(f"{shown} cannot be opened: {detail}", spec=shown) from error
    return driver, shown


def _parse_options(query: str, shown: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS:  # its value may be a secret
            raise StoreSpecError(
                f"unknown option {name!r} in the address of {shown}",
                spec=shown,
                remedy=f"Use one of: {', '.join(_OPTIONS[:-1])}. Credentials come from the environment.",
            )
    return options


def _parse_seconds(options: Mapping[str, str], shown: str) -> float:
    text = options.get("request_seconds", "60")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.001 <= seconds <= 86_400:
        raise StoreSpecError(f"request_seconds of {shown} is {text!r}, not a number of seconds", spec=shown)
    return seconds


def _is_without_tls(options: Mapping[str, str]) -> bool:
    variables = (os.environ[name] for name in _ENDPOINT_VARIABLES if name in os.environ)
    return (options.get("endpoint") or next(variables, "")).startswith("http://")


def _open_local(path: str, shown: str, *, is_accepted: bool) -> Any:
    """Return a store in a local directory, for tests: the library does not sync its writes."""
    if not is_accepted:
        raise StoreSpecError(
            f"{shown} would lose acknowledged checkpoints in a power cut: the library does not sync its writes",
            spec=shown,
            remedy=f"Use 'file:{path}'. For tests, add '?allow_unsafe=true'.",
        )
    return obstore.store.LocalStore(unquote(path), mkdir=True, automatic_cleanup=True)
