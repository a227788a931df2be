"""The checks, in modules of related kinds, and the table from kinds to checks.

Plugins add kinds through the entry-point group `flowckpt.evidence`: the entry's name is the kind, its object a `Check`
or a class of one. Plugins cannot replace flowckpt's own kinds. A record can only name an installed kind: it is looked
up, never imported by name.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from flowckpt.core.system import external
from flowckpt.evidence.checks.base import Check, UncheckableClaimError

ENTRY_POINTS = "flowckpt.evidence"

TABLE: Mapping[str, tuple[str, str]] = {
    "artifact_exists": ("files", "ArtifactExists"),
    "file_sha256": ("files", "FileSha256"),
    "directory_digest": ("files", "DirectoryDigest"),
    "command_exit": ("processes", "CommandExit"),
    "db_row": ("db_row", "DbRow"),
    "network_reachable": ("http", "NetworkReachable"),
    "api_response": ("http", "ApiResponse"),
    "process_exists": ("processes", "ProcessExists"),
    "container_running": ("processes", "ContainerRunning"),
    "predicate": ("predicate", "Predicate"),
}
"""The module and the class of the check of each kind."""

_MADE: dict[str, Check] = {}
"""The checks made so far: flowckpt's own and those of plugins."""


def find_check(kind: str, own: Mapping[str, Check] | None = None) -> Check:
    """Return the check of a kind: flowckpt's own, or else the program's, or else a plugin's.

    Args:
        kind: the kind.
        own: the kinds that the program adds.

    Raises:
        UncheckableClaimError: the kind is unknown here, or its plugin cannot be loaded.
    """
    if own and kind in own and kind not in TABLE:
        return own[kind]
    check = _MADE.get(kind)
    if check is not None:
        return check
    if kind in TABLE:
        module_name, class_name = TABLE[kind]
        module = importlib.import_module(f"flowckpt.evidence.checks.{module_name}")
        own_check: Check = getattr(module, class_name)()
        return _MADE.setdefault(kind, own_check)
    return _load_plugin(kind)


def _load_plugin(kind: str) -> Check:
    for entry_point in external.metadata.entry_points(group=ENTRY_POINTS, name=kind):
        try:
            found = entry_point.load()
            check = found() if isinstance(found, type) else found
        except Exception as error:  # the import of a plugin may raise anything
            raise UncheckableClaimError(
                f"the plugin for {kind!r} ({entry_point.value}) cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        if isinstance(check, Check):
            return _MADE.setdefault(kind, check)
        raise UncheckableClaimError(
            f"the plugin for {kind!r} ({entry_point.value}) does not provide a Check: {check!r:.80}"
        )
    raise UncheckableClaimError(
        f"no check is known for claims of the kind {kind!r}",
        remedy=f"Upgrade flowckpt, or install the plugin that adds it to the entry-point group {ENTRY_POINTS!r}.",
    )
