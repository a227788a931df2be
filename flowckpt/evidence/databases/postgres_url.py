"""URLs of PostgreSQL databases: what a URL may contain, and which servers the program itself has named.

Claims are recorded, and a record may have been changed by others. So a URL must not contain a password, nor options
that read files, change settings or add a second host. A server is queried only if the program allowed it, because the
server gets the password of the environment.
"""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

import attrs

from flowckpt.evidence.checks.base import AllowedHost, MalformedClaimError, RefusedClaimError
from flowckpt.evidence.network import find_allowed, plain_host

DEFAULT_PORT = 5432

_URL = re.compile(r"postgres(?:ql)?://([^/?#]*)(?:/([^/?#]*))?(?:\?([^#]*))?")
_SERVER = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::(.*))?", re.DOTALL)
_BROKEN_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_OPTION_NAME = re.compile(r"[a-z_]{1,40}")
_ALLOWED_OPTIONS = frozenset({"host", "port", "dbname", "user", "sslmode", "sslrootcert", "application_name"})
_SSL_MODES = frozenset({"disable", "allow", "prefer", "require", "verify-ca", "verify-full"})
_FORM = "Write postgresql://user@host:port/database."

_written: set[str] = set()


@attrs.frozen
class PostgresUrl:
    """A URL that contains only these parts.

    Attributes:
        dbname: the database.
        host: a name, an address, or the directory of a socket; None for the server of the environment.
        port: the port; None if neither a port nor a host is given.
        user: the role; None for that of the environment.
        sslmode: how the connection is encrypted; None for the setting of the environment.
        sslrootcert: the file of the certificates to trust, or `system`.
        application_name: the name of the connection on the server.
    """

    dbname: str
    host: str | None = None
    port: int | None = None
    user: str | None = None
    sslmode: str | None = None
    sslrootcert: str | None = None
    application_name: str = "flowckpt"

    @property
    def is_socket(self) -> bool:
        """Whether the server is reached through a socket of this machine."""
        return self.host is not None and self.host.startswith("/")

    def parameters(self) -> dict[str, str]:
        """Return the parameters for the driver."""
        given = attrs.asdict(self)
        return {name: str(value) for name, value in given.items() if value is not None}


def parse(url: str) -> PostgresUrl:
    """Parse a URL. Error messages show nothing of it but names of options.

    Raises:
        MalformedClaimError: it is not a URL of a PostgreSQL database.
        RefusedClaimError: it contains something that a claim must not contain.
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise MalformedClaimError("the claim's URL is not one of a PostgreSQL database", remedy=_FORM)
    authority, path, query = match.groups()
    login, at, place = authority.rpartition("@")
    user, colon, _ = login.partition(":")
    if colon:
        raise _password_error()
    server = _SERVER.fullmatch(place)
    if server is None:
        raise MalformedClaimError("the claim's URL has a malformed host", remedy=_FORM)
    given = {"host": server[1], "port": server[2] or "", "user": user if at else "", "dbname": path or ""}
    found = {name: _decode(text, name) for name, text in given.items() if text}
    for name, text in _parse_options(query or ""):
        if name in found:
            raise MalformedClaimError(f"the claim's URL has {name} twice", remedy=_FORM)
        found[name] = _decode(text, name)
    return _make_url(found)


def register(url: str) -> None:
    """Register a URL that the program wrote itself, so that its server may be queried."""
    parse(url)
    _written.add(url)


def check_allowed(url: str, hosts: tuple[AllowedHost, ...]) -> PostgresUrl:
    """Parse the URL of a claim whose server may be queried.

    Args:
        url: the URL of a claim.
        hosts: the hosts that the verifier may reach.

    Raises:
        RefusedClaimError: only the record names this server.
    """
    found = parse(url)
    if url in _written or _is_of_environment(found):
        return found
    if found.host is None or found.port is None or found.is_socket:
        raise RefusedClaimError(
            "only a record names this server",
            remedy="Set it in the environment, too (PGHOST, PGPORT), or write the claim with db_row(…) in the program "
            "that verifies it.",
        )
    find_allowed(found.host, found.port, hosts)
    return found


def _is_of_environment(url: PostgresUrl) -> bool:
    host, port = os.environ.get("PGHOST", ""), os.environ.get("PGPORT", str(DEFAULT_PORT))
    if url.host is None:
        return url.port is None or str(url.port) == port
    return (url.host, str(url.port)) == (host if host.startswith("/") else host.lower(), port)


def _parse_options(query: str) -> list[tuple[str, str]]:
    options: list[tuple[str, str]] = []
    for pair in query.split("&") if query else ():
        name, _, text = pair.partition("=")
        if name == "password":
            raise _password_error()
        if name not in _ALLOWED_OPTIONS:
            shown = repr(name) if _OPTION_NAME.fullmatch(name) else "a part"  # it may be part of a password
            raise RefusedClaimError(
                f"the claim's URL has {shown}, which is not allowed",
                remedy=f"Options of a claim are {', '.join(sorted(_ALLOWED_OPTIONS))}.",
            )
        options.append((name, text))
    return options


def _decode(text: str, name: str) -> str:
    try:
        decoded = "" if _BROKEN_PERCENT.search(text) else unquote(text, errors="strict")
        decoded.encode()
    except UnicodeError:
        decoded = ""
    if not decoded or not decoded.isprintable():
        raise MalformedClaimError(f"the claim's URL has a malformed {name}", remedy=_FORM)
    return decoded


def _make_url(found: dict[str, str]) -> PostgresUrl:
    if "dbname" not in found:
        raise MalformedClaimError("the claim's URL does not name a database", remedy=_FORM)
    host, port = found.pop("host", None), found.pop("port", None)
    if "," in (host or "") or "," in (port or ""):
        raise RefusedClaimError("the claim's URL names several hosts", remedy=_FORM)
    if host is not None and not host.startswith("/"):
        host = plain_host(host)
    if port is not None and not (port.isascii() and port.isdigit() and len(port) < 6 and 1 <= int(port) <= 65_535):
        raise MalformedClaimError("the port of the claim's URL is not a number from 1 to 65535", remedy=_FORM)
    if found.get("sslmode") not in (None, *_SSL_MODES):
        raise MalformedClaimError("the claim's URL has an unknown sslmode", remedy=f"Known: {', '.join(_SSL_MODES)}.")
    number = int(port) if port is not None else None
    return PostgresUrl(host=host, port=number or (DEFAULT_PORT if host is not None else None), **found)


def _password_error() -> RefusedClaimError:
    return RefusedClaimError(
        "the claim's URL contains a password, and claims are recorded",
        remedy="Leave it to the environment: PGPASSWORD, or a password file (~/.pgpass, PGPASSFILE).",
    )
