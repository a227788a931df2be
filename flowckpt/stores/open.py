"""Open stores by their description: `file:.flowckpt`, `sqlite:runs.db`, `memory:` …, and schemes of entry points."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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


def _open_postgres(spec: str) -> Any:
    # the URL may hold a password
    with _package_named("psycopg", "the PostgreSQL store", "postgresql:…", extra="postgres"):
        return stores.postgres.PostgresCheckpointStore(spec)


def _open_objects(spec: str) -> Any:
    with _package_named("obstore", "the store in object storage", f"{spec.partition(':')[0]}:…", extra="s3"):
        return stores.objects.ObjectCheckpointStore(spec)


@contextmanager
def _package_named(package: str, store: str, shown: str, *, extra: str) -> Iterator[None]:
    """Raise an error with the fix if the package of a store is not installed."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in (package, f"{package}_binary"):
            raise
        raise StoreSpecError(
            f"{store} needs the package {package}, which is not installed",
            spec=shown,
            remedy=f"pip install 'flowckpt[{extra}]'",
        ) from error


_BUILT_IN: dict[str, Callable[[str], Any]] = {
    "memory": lambda spec: stores.memory.MemoryCheckpointStore(),
    "sqlite": lambda spec: stores.sqlite.SqliteCheckpointStore(spec.partition(":")[2] or ".flowckpt.db"),
    "postgresql": _open_postgres,
    "postgres": _open_postgres,
    "s3": _open_objects,
    "gs": _open_objects,
    "az": _open_objects,
    "objects+file": _open_objects,
}


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
    store = _open(spec, key_file, compression, trust=trust)
    with suppress(AttributeError):  # a third party's store may be frozen
        store.spec = hide_passwords(spec)
    return store


def _open(spec: str, key_file: str | os.PathLike[str] | None, compression: str, *, trust: bool) -> StoreBase:
    scheme, colon, rest = spec.partition(":")
    if not colon:
        path = os.path.expanduser(spec)  # noqa: PTH111 - an unknown home raises nothing
        raise StoreSpecError(
            f"{spec!r} is not the description of a store", spec=spec, remedy=f"Write 'file:{path}' for a directory."
        )
    check_slashes(spec)
    if scheme == "file":
        return FileCheckpointStore(rest or ".flowckpt", key_file=key_file, compression=compression, trust=trust)
    if scheme != "memory":  # it has nothing at rest to protect
        _refuse_protection(spec, key_file, compression)
    if scheme in _BUILT_IN:
        built_in: StoreBase = _BUILT_IN[scheme](spec)
        return built_in
    for entry_point in external.metadata.entry_points(group=ENTRY_POINTS, name=scheme):
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
