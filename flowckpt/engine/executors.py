"""The executors of an attempt: given now, the engine's own, and recorded when the run was started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowckpt.errors import UnknownExecutorError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flowckpt.executors.base import Given

RECORDED = "executors"
"""In the metadata: the descriptions that the run was started with, by name."""

_HARMLESS = ("engine", "thread", "process")


def chosen_executors(metadata: dict[str, Any], own: Mapping[str, Given], given: Mapping[str, str]) -> dict[str, Given]:
    """Return the executors of an attempt, and write down in the metadata what was given for it.

    A record may come from anywhere, and whoever runs a step sees its arguments and says what came of it: so an address in
    a record is never used. It is only told, and wants to be given again.

    Args:
        metadata: that of the run; changed.
        own: the engine's.
        given: descriptions that were given for this attempt.

    Raises:
        UnknownExecutorError: the run was started with an executor on another machine, and nobody has given one now.
    """
    recorded = {str(name): str(each) for name, each in dict(metadata.get(RECORDED, {})).items()}
    for name, description in recorded.items():
        if name not in own and name not in given and not _is_harmless(description):
            option = description if name == "default" else f"{name}={description}"
            here = "engine" if name == "default" else f"{name}=process"
            raise UnknownExecutorError(
                f"the run was started with executor {name!r} as {description!r}, an address that is not taken from a record",
                executor=name,
                remedy=f"Give it again, --executor {option}, or another one, --executor {here}.",
            )
    if written := {**recorded, **given}:
        metadata[RECORDED] = written
    return {**recorded, **own, **given}


def _is_harmless(description: str) -> bool:
    """Tell whether it is no address: the steps stay on this machine, in what the run itself starts."""
    kind, _, rest = description.partition(":")
    return kind in _HARMLESS or (kind == "dask" and rest.partition(":")[0] == "local")
