"""Failures of steps as values: a map that tolerates some returns them in its list, and the list goes on as any other.

They hold only what was recorded, so that is all there is to keep.
"""

from __future__ import annotations

from typing import Any

from flowckpt.codec import tags
from flowckpt.errors import FanOutFailedError, StepFailedError

_TEXTS = ("path", "error_type", "error_message", "traceback", "remedy")


def _apart(error: StepFailedError) -> dict[str, Any]:
    plain: dict[str, Any] = {name: text for name in _TEXTS if (text := getattr(error, name))}
    if error.error_bases:
        plain["error_bases"] = list(error.error_bases)
    if error.tries != 1:
        plain["tries"] = error.tries
    if isinstance(error, FanOutFailedError) and error.causes:
        plain["causes"] = list(error.causes)
    return plain


def _built(cls: type[StepFailedError]) -> Any:
    def build(plain: Any) -> StepFailedError:
        given = {"path": "", "error_type": "", "error_message": "", **plain}
        path, tries, causes = given.pop("path"), given.get("tries", 1), given.get("causes", ())
        texts = (path, *(given.get(name, "") for name in _TEXTS[1:]), *given.get("error_bases", ()))
        if type(tries) is not int or any(type(text) is not str for text in texts):
            raise ValueError("a failure is told in texts and a number of tries")
        if any(not isinstance(cause, StepFailedError) for cause in causes):
            raise ValueError("the causes of a failure are failures")
        return cls(path, **given)

    return build


tags.add_nested("$failure", StepFailedError, _apart, _built(StepFailedError))
tags.add_nested("$failures", FanOutFailedError, _apart, _built(FanOutFailedError))
