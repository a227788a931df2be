"""Short ways to write claims. Facts that are not given are captured when the step commits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import attrs

from flowckpt import evidence
from flowckpt.core.system.declared import short_repr, type_name
from flowckpt.errors import EvidenceError, FlowckptError
from flowckpt.evidence import claims
from flowckpt.evidence.claims import Evidence, EvidenceType, State, format_url, has_credentials

AnyPath = str | os.PathLike[str]


def artifact_exists(
    path: AnyPath,
    type: Literal["file", "directory", "any"] = "any",  # noqa: A002 - the fact is called so in records, too
) -> Evidence:
    """Claim that a file or directory exists; once captured, also that a file has not shrunk.

    Args:
        path: its path, relative to the verifier's base path.
        type: what it must be.
    """
    if type not in ("file", "directory", "any"):
        raise EvidenceError(f"{type!r:.80} is not a type of artifact", remedy="Write 'file', 'directory' or 'any'.")
    expected = {"path": _check_path(path), "type": type}
    what = {"file": "the file ", "directory": "the directory ", "any": ""}[type]
    return Evidence(EvidenceType.ARTIFACT_EXISTS, f"{what}{expected['path']} exists", expected, state=State.UNCAPTURED)


def file_sha256(path: AnyPath, sha256: str | None = None) -> Evidence:
    """Claim the content of a file.

    Args:
        path: its path, relative to the verifier's base path.
        sha256: the digest as 64 hex digits; captured by default.
    """
    return _make_digest_claim(EvidenceType.FILE_SHA256, f"the content of {_check_path(path)}", path, "sha256", sha256)


def directory_digest(path: AnyPath, digest: str | None = None) -> Evidence:
    """Claim the content of a directory: names, files and links, recursively.

    Args:
        path: its path, relative to the verifier's base path.
        digest: the digest of the tree; captured by default.
    """
    kind = EvidenceType.DIRECTORY_DIGEST
    return _make_digest_claim(kind, f"the content of the directory {_check_path(path)}", path, "digest", digest)


def command_exit(exit_code: int = 0) -> Evidence:
    """Claim the exit code of the step's command.

    Args:
        exit_code: the code; a negative one is the number of a signal.
    """
    if type(exit_code) is not int:
        raise EvidenceError(f"{exit_code!r:.80} is not an exit code", remedy="Write a whole number.")
    return Evidence(EvidenceType.COMMAND_EXIT, f"the command returned {exit_code}", {"exit_code": exit_code})


def db_row(
    database: AnyPath,
    table: str,
    where: Mapping[str, Any] | None = None,
    values: Mapping[str, Any] | None = None,
    *,
    secret_columns: Iterable[str] = (),
) -> Evidence:
    """Claim that at least one row matches, and that all matching rows have the given values.

    Args:
        database: a plain word for a database of the setting `databases` or of `register_database`; a SQLite file,
            relative to the verifier's base path (`./shop` for a name without a dot); or
            `postgresql://user@host:port/database` without a password. Writing the claim allows the verifiers of this
            process to query that server.
        table: the table; for PostgreSQL also `schema.table`.
        where: columns and values that select rows, None for NULL; all rows by default.
        values: columns and values that each selected row must have.
        secret_columns: columns that are never shown; their `values` are recorded only as salted digests.
    """
    hidden = tuple(secret_columns)
    if not isinstance(database, str | os.PathLike):
        raise EvidenceError(
            f"{short_repr(database)} is not a database ({type_name(type(database))})",
            evidence_type="db_row",
            remedy="Write the path of a SQLite file, a name of the setting 'databases', or postgresql://user@host/database.",
        )
    for word, columns in (("where", where), ("values", values)):
        if columns is not None and not isinstance(columns, Mapping):
            raise EvidenceError(
                f"{word}={short_repr(columns)} does not map columns to values",
                evidence_type="db_row",
                remedy=f"Write {word}={{'column': value}}: SQL is not accepted.",
            )
    address = os.fspath(database)
    if isinstance(address, str) and "://" in address:
        if address.startswith(("postgresql://", "postgres://")):
            _register_server(address)
        elif has_credentials(address):
            raise EvidenceError(
                f"{format_url(address)} was given with a user or password, which would be recorded",
                evidence_type="db_row",
                remedy="Leave it to the environment or a password file of the database's client.",
            )
        metadata: dict[str, Any] = {"database": address}
    elif isinstance(database, str) and database.isidentifier():
        metadata = {"database": database}
    else:
        metadata = {"db_path": _check_path(address)}
    if hidden:
        metadata["secret"] = list(hidden)
    promised = {
        name: evidence.documents.digest_of_secret(value) if name in hidden else value
        for name, value in (values or {}).items()
    }
    expected = {"table": table, "where": dict(where or {}), "values": promised}
    return Evidence(EvidenceType.DB_ROW, f"rows of {table} in {format_url(address) if '://' in address else address}",
                    expected, metadata)  # fmt: skip


def network_reachable(host: str, port: int) -> Evidence:
    """Claim that a host accepts connections on a port, which the verifier must allow.

    Args:
        host: a name or an address.
        port: the port.
    """
    return Evidence(
        EvidenceType.NETWORK_REACHABLE, f"{host}:{port} can be reached", {"host": host, "port": _check_port(port)}
    )


def api_response(
    url: str,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
    json: Mapping[str, Any] | None = None,
) -> Evidence:
    """Claim the response to a GET of a URL, whose host and port the verifier must allow.

    Args:
        url: an http or https URL without credentials.
        status: the status; 200 if nothing else is claimed.
        headers: headers of the response.
        json: values in the JSON body by place, such as `{"data.items[0].id": 7}`.
    """
    if has_credentials(url):
        raise EvidenceError(
            f"{format_url(url)} was given with credentials, which would be recorded",
            evidence_type="api_response",
            remedy="Give them to the verifier: AllowedHost(…, headers={'Authorization': …}).",
        )
    expected: dict[str, Any] = {"url": url}
    if status is not None or not (headers or json):
        expected["status"] = 200 if status is None else status
    if headers:
        expected["headers"] = dict(headers)
    if json:
        expected["json"] = dict(json)
    return Evidence(EvidenceType.API_RESPONSE, f"the answer of {format_url(url)}", expected)


def process_exists(pid: int | None = None) -> Evidence:
    """Claim that a process is alive: the one that has the pid when the step ends.

    Args:
        pid: its id; None for the program's own process.
    """
    if pid is not None and (type(pid) is not int or pid < 1):
        raise EvidenceError(f"{pid!r:.80} is not a process id", remedy="Write a whole number above 0.")
    expected = {} if pid is None else {"pid": pid}
    message = "this process" if pid is None else f"process {pid}"
    return Evidence(EvidenceType.PROCESS_EXISTS, f"{message} lives", expected, state=State.UNCAPTURED)


def container_running(name: str) -> Evidence:
    """Claim that a container is running: the one that has the name when the step ends.

    Args:
        name: its name or id.
    """
    expected = {"name": name}
    return Evidence(EvidenceType.CONTAINER_RUNNING, f"container {name} runs", expected, state=State.UNCAPTURED)


def predicate(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Evidence:
    """Claim that a function of the program returns True.

    Args:
        function: a named function, sync or async; writing the claim registers it.
        *args: its arguments, recordable values.
        **kwargs: its named arguments, recordable values.
    """
    claims.register_predicate(function)
    name = claims.function_name(function)
    expected: dict[str, Any] = {"function": name}
    if args:
        expected["args"] = list(args)
    if kwargs:
        expected["kwargs"] = kwargs
    return Evidence(EvidenceType.PREDICATE, f"{name} says True", expected)


def make_file_claim(path: str, role: str, *, is_directory: bool) -> Evidence:
    """Return the claim of a file or directory that a step reads or writes; its facts are captured later.

    Args:
        path: its path.
        role: `reads` or `writes`.
        is_directory: whether it is a directory.
    """
    made = directory_digest(path) if is_directory else file_sha256(path)
    more = {claims.FOLLOWS_LINKS: True} if is_directory and role == "reads" else {}
    return attrs.evolve(made, description=f"{role} {path}", role=role, expected={**made.expected, **more})


def _make_digest_claim(kind: EvidenceType, message: str, path: AnyPath, fact: str, digest: str | None) -> Evidence:
    expected = {"path": _check_path(path)}
    if digest is None:
        return Evidence(kind, message, expected, state=State.UNCAPTURED)
    if not isinstance(digest, str):
        raise EvidenceError(f"{digest!r:.80} is not a digest", evidence_type=kind, remedy="Write its hex digits.")
    return Evidence(kind, message, {**expected, fact: digest})


def _register_server(url: str) -> None:
    try:
        evidence.databases.postgres_url.register(url)
    except FlowckptError as error:
        raise EvidenceError(error.message, evidence_type="db_row", remedy=error.remedy) from None


def _check_path(path: AnyPath) -> str:
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str) or not text:
        raise EvidenceError(f"{text!r:.80} is not a path", remedy="Write a text that is not empty.")
    return text


def _check_port(port: object) -> int:
    if type(port) is not int or not 1 <= port <= 65_535:
        raise EvidenceError(f"{port!r:.80} is not a port", remedy="Write a whole number from 1 to 65535.")
    return port
