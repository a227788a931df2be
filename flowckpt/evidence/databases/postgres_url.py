"""URLs of PostgreSQL databases: what may stand in one, and which servers the program itself has named.

Claims are recorded, and a record may have been changed by somebody else. So a URL holds no password and none of the
options that read files, run settings or lead to a second host. A server that it names is asked only where the program
allowed it: the process that is asked for rows is shown the password of the environment.
"""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

import attrs

from flowckpt.evidence.checks.base import AllowedHost, MalformedClaimError, RefusedClaimError
from flowckpt.evidence.network import allowed, plain_host

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
    """A URL that holds nothing but these.

    Attributes:
        dbname: the database.
        host: a name, an address, or the directory of a socket; None for the server of the environment.
        port: the port; None where neither it nor a host is named.
        user: the role; None for that of the environment.
        sslmode: how the connection is encrypted; None for the way of the environment.
        sslrootcert: the file of the certificates to trust, or `system`.
        application_name: what the server calls the connection.
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
        """Whether the server is asked through a socket of this machine."""
        return self.host is not None and self.host.startswith("/")

    def parameters(self) -> dict[str, str]:
        """Return what the driver is given."""
        given = attrs.asdict(self)
        return {name: str(value) for name, value in given.items() if value is not None}


def parsed(url: str) -> PostgresUrl:
    """Return what a URL says. No message of an error shows more of it than names of options.

    Raises:
        MalformedClaimError: it is not a URL of a PostgreSQL database.
        RefusedClaimError: it asks for more than a claim may.
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise MalformedClaimError("the claim's URL is not one of a PostgreSQL database", remedy=_FORM)
    authority, path, query = match.groups()
    login, at, place = authority.rpartition("@")
    user, colon, _ = login.partition(":")
    if colon:
        raise _password_refused()
    server = _SERVER.fullmatch(place)
    if server is None:
        raise MalformedClaimError("the claim's URL has a malformed host", remedy=_FORM)
    given = {"host": server[1], "port": server[2] or "", "user": user if at else "", "dbname": path or ""}
    found = {name: _decoded(text, name) for name, text in given.items() if text}
    for name, text in _options(query or ""):
        if name in found:
            raise MalformedClaimError(f"the claim's URL says {name} twice", remedy=_FORM)
        found[name] = _decoded(text, name)
    return _checked(found)


def register(url: str) -> None:
    """Remember a URL as one that the program wrote itself, so that its server may be asked."""
    parsed(url)
    _written.add(url)


def check_allowed(url: str, hosts: tuple[AllowedHost, ...]) -> PostgresUrl:
    """Return what a URL says where its server may be asked.

    Args:
        url: the URL of a claim.
        hosts: what the verifier may reach.

    Raises:
        RefusedClaimError: only the record names this server.
    """
    found = parsed(url)
    if url in _written or _is_of_environment(found):
        return found
    if found.host is None or found.port is None or found.is_socket:
        raise RefusedClaimError(
            "a record alone names this server",
            remedy="Name it by the environment, too (PGHOST, PGPORT), or write the claim with db_row(…) in the program "
            "that verifies it.",
        )
    allowed(found.host, found.port, hosts)
    return found


def _is_of_environment(url: PostgresUrl) -> bool:
    host, port = os.environ.get("PGHOST", ""), os.environ.get("PGPORT", str(DEFAULT_PORT))
    if url.host is None:
        return url.port is None or str(url.port) == port
    return (url.host, str(url.port)) == (host if host.startswith("/") else host.lower(), port)


def _options(query: str) -> list[tuple[str, str]]:
    options: list[tuple[str, str]] = []
    for pair in query.split("&") if query else ():
        name, _, text = pair.partition("=")
        if name == "password":
            raise _password_refused()
        if name not in _ALLOWED_OPTIONS:
            shown = repr(name) if _OPTION_NAME.fullmatch(name) else "a part"  # which may be of a password
            raise RefusedClaimError(
                f"the claim's URL has {shown}, which may not stand in one",
                remedy=f"Options of a claim are {', '.join(sorted(_ALLOWED_OPTIONS))}.",
            )
        options.append((name, text))
    return options


def _decoded(text: str, name: str) -> str:
    try:
        decoded = "" if _BROKEN_PERCENT.search(text) else unquote(text, errors="strict")
        decoded.encode()
    except UnicodeError:
        decoded = ""
    if not decoded or not decoded.isprintable():
        raise MalformedClaimError(f"the claim's URL has a malformed {name}", remedy=_FORM)
    return decoded


def _checked(found: dict[str, str]) -> PostgresUrl:
    if "dbname" not in found:
        raise MalformedClaimError("the claim's URL names no database", remedy=_FORM)
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


def _password_refused() -> RefusedClaimError:
    return RefusedClaimError(
        "the claim's URL holds a password, and claims are recorded",
        remedy="Leave it to the environment: PGPASSWORD, or a password file (~/.pgpass, PGPASSFILE).",
    )
