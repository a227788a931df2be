"""Open stores by their description: `file:.flowckpt`, `sqlite:runs.db`, `memory:` …, and schemes of entry points."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from flowckpt import stores
from flowckpt.core.system import external
from flowckpt.errors import StoreSpecError
from flowckpt.stores.adapted import adapt
from flowckpt.stores.base import StoreBase
from flowckpt.stores.file import FileCheckpointStore

ENTRY_POINTS = "flowckpt.stores"

_LOGIN = r"^([A-Za-z][\w+.-]*://[^/?#@:]*:)[^/?#]*@"
_LOGIN_OPTION = r"(?i)([?&](?:password|sslpassword|passfile|service)=)[^&#]*"

_NOT_AT_REST = "memory"
_BUILT_IN: dict[str, Callable[[str], Any]] = {
    "memory": lambda rest: stores.memory.MemoryCheckpointStore(),
    "sqlite": lambda rest: stores.sqlite.SqliteCheckpointStore(rest or ".flowckpt.db"),
    "postgresql": lambda rest: _postgres(f"postgresql:{rest}"),
    "postgres": lambda rest: _postgres(f"postgres:{rest}"),
    "s3": lambda rest: _objects(f"s3:{rest}"),
    "gs": lambda rest: _objects(f"gs:{rest}"),
    "az": lambda rest: _objects(f"az:{rest}"),
    "objects+file": lambda rest: _objects(f"objects+file:{rest}"),
}


def _postgres(url: str) -> Any:
    try:
        return stores.postgres.PostgresCheckpointStore(url)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("psycopg", "psycopg_binary"):
            raise
        raise StoreSpecError(
            "the PostgreSQL store needs the package psycopg, which is not installed",
            spec="postgresql:…",  # the URL may hold a password
            remedy="pip install 'flowckpt[postgres]'",
        ) from error


def _objects(url: str) -> Any:
    try:
        return stores.objects.ObjectCheckpointStore(url)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "obstore":
            raise
        raise StoreSpecError(
            "the store in object storage needs the package obstore, which is not installed",
            spec=f"{url.partition(':')[0]}:…",
            remedy="pip install 'flowckpt[s3]'",
        ) from error


def open_store(
    spec: str, *, key_file: str | os.PathLike[str] | None = None, compression: str = "none", trust: bool = False
) -> StoreBase:
    """Open the store of a specification.

    Args:
        spec: `file:PATH`, `sqlite:PATH`, `postgresql://…`, `s3://bucket/prefix`, `gs://bucket/prefix`,
            `az://container/prefix`, `memory:`, or a scheme of the entry-point group `flowckpt.stores`, whose object is
            called with the text after the colon.
        key_file: a file with keys, for the file store; the memory store ignores it, other stores refuse it.
        compression: how records are compressed: `none`, `gzip`, `zstd` or `auto`; for the same stores as `key_file`.
        trust: accept runs whose records are not authenticated by the key; for the same stores as `key_file`.

    Raises:
        StoreSpecError: the scheme is missing or unknown, or the store does not support keys or compression.
        KeyFileError: the key file is missing, invalid, or readable by other users.
        SettingError: the compression is unknown, or a package is missing.
    """
    opened = _opened(spec, key_file, compression, trust=trust)
    with suppress(AttributeError):  # a third party's store may be frozen
        opened.spec = hide_passwords(spec)
    return opened


def _opened(spec: str, key_file: str | os.PathLike[str] | None, compression: str, *, trust: bool) -> StoreBase:
    scheme, colon, rest = spec.partition(":")
    if not colon:
        raise StoreSpecError(
            f"{spec!r} is not the description of a store", spec=spec, remedy=f"Write 'file:{spec}' for a directory."
        )
    check_slashes(spec)
    if scheme == "file":
        return FileCheckpointStore(rest or ".flowckpt", key_file=key_file, compression=compression, trust=trust)
    if scheme != _NOT_AT_REST:
        _refuse_protection(spec, key_file, compression)
    if scheme in _BUILT_IN:
        built_in: StoreBase = _BUILT_IN[scheme](rest)
        return built_in
    found = external.metadata.entry_points(group=ENTRY_POINTS, name=scheme)
    for entry_point in found:
        return adapt(entry_point.load()(rest))
    shown = hide_passwords(spec)
    others = sorted({entry.name for entry in external.metadata.entry_points(group=ENTRY_POINTS)})
    raise StoreSpecError(
        f"unknown store scheme {scheme!r} in {shown!r}",
        spec=shown,
        remedy=f"Use one of: {', '.join(['file', *_BUILT_IN, *others])}.",
    )


def check_slashes(spec: str) -> None:
    """Refuse a path that is written as a URL: some libraries read `sqlite:///runs.db` as relative, others as absolute.

    Args:
        spec: the description of a store.

    Raises:
        StoreSpecError: two or more slashes follow `sqlite:`, or just two follow `file:`.
    """
    scheme, _, rest = spec.partition(":")
    slashes = len(rest) - len(rest.lstrip("/"))
    if slashes >= 2 and (scheme == "sqlite" or (scheme == "file" and slashes == 2)):
        path = rest.lstrip("/")
        raise StoreSpecError(
            f"{spec!r} can mean two files",
            spec=spec,
            remedy=f"Write {scheme}:{path}, from the current directory, or {scheme}:/{path}, from the root.",
        )


def _refuse_protection(spec: str, key_file: object, compression: str) -> None:
    """Refuse a key or a compression for a store that would ignore it."""
    if key_file is not None:
        raise StoreSpecError(
            f"the store {hide_passwords(spec)!r} cannot authenticate or encrypt records, but a key file was given",
            spec=hide_passwords(spec),
            remedy="Use the file store, or omit the key file and use the encryption of the medium.",
        )
    if compression != "none":
        raise StoreSpecError(
            f"the store {hide_passwords(spec)!r} does not compress records, but compression {compression!r} was requested",
            spec=hide_passwords(spec),
            remedy="Omit the compression, or use the file store.",
        )


def hide_passwords(spec: str) -> str:
    """Return a store's description without passwords.

    Args:
        spec: the description of a store.
    """
    if "://" not in spec and "=" not in spec:
        return spec
    return re.sub(_LOGIN_OPTION, r"\1***", re.sub(_LOGIN, r"\1***@", spec))
