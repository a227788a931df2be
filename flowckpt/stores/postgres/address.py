"""Where a PostgreSQL store is: a URL, of which nothing secret is ever shown."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import attrs
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from flowckpt.errors import StoreSpecError

SCHEMA = "flowckpt"
_SECRETS = ("password", "passfile", "sslpassword", "sslkey", "service", "oauth_client_secret")
_OURS = ("allow_unsafe", "schema")
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


@attrs.frozen(repr=False)
class PostgresAddress:
    """Where a store is.

    Attributes:
        conninfo: what libpq takes; it may hold a password.
        shown: the same for people, without anything secret.
        schema: the schema that holds the tables.
        allow_unsafe: whether a server is accepted that does not keep what it commits.
        secrets: what must appear in no message.
    """

    conninfo: str
    shown: str
    schema: str
    allow_unsafe: bool
    secrets: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<{self.shown}>"

    def scrubbed(self, text: str) -> str:
        """Return text without the secrets of this address."""
        for secret in self.secrets:
            text = text.replace(secret, "***").replace(quote(secret, safe=""), "***")
        return text


def parsed_address(url: str, *, allow_unsafe: bool = False, schema: str | None = None) -> PostgresAddress:
    """Return the address of a URL.

    Args:
        url: `postgresql://user@host:port/database?option=value`; besides those of libpq the options `schema` and
            `allow_unsafe=true`.
        allow_unsafe: as the option.
        schema: as the option.

    Raises:
        StoreSpecError: it is no such URL; the error shows nothing of it that could be secret.
    """
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True)
        ours = {name: value for name, value in options if name in _OURS}
        kept = [(name, value) for name, value in options if name not in _OURS]
        query = urlencode(kept, quote_via=quote)
        given = conninfo_to_dict(urlunsplit(("postgresql", parts.netloc, parts.path, query, "")))
    except (ValueError, psycopg.Error):
        raise StoreSpecError(
            "the description of the PostgreSQL store is no valid URL (it is not shown, as it may hold a password)",
            spec="postgresql:…",
            remedy="Write postgresql://user@host:5432/database; percent-encode what is special in it.",
        ) from None
    if parts.scheme not in ("postgresql", "postgres") or not url.partition(":")[2].startswith("//"):
        raise StoreSpecError(
            "the description of the PostgreSQL store is no URL",
            spec="postgresql:…",
            remedy="Write postgresql://user@host:5432/database.",
        )
    name = schema or ours.get("schema") or SCHEMA
    if not _NAME.fullmatch(name) or name.startswith("pg_"):
        raise StoreSpecError(
            f"{name!r} is no name for a schema",
            spec="postgresql:…",
            remedy="Use small letters, digits and underscores, at most 63.",
        )
    is_unsafe = allow_unsafe or ours.get("allow_unsafe", "").lower() in ("true", "1", "yes", "on")
    secrets = tuple(str(given[key]) for key in _SECRETS if given.get(key))
    user = f"{given['user']}@" if given.get("user") else ""
    port = f":{given['port']}" if given.get("port") else ""
    shown = f"postgresql://{user}{given.get('host', '')}{port}/{given.get('dbname', '')}"
    return PostgresAddress(
        make_conninfo("", **{"connect_timeout": 10, "application_name": "flowckpt", **given}),
        shown,
        name,
        is_unsafe,
        secrets,
    )
