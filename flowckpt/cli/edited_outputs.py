"""Outputs of steps as the command line gives them: `--set STEP=JSON`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flowckpt.cli.terminal_text import short_value
from flowckpt.cli.values import MisfitError, from_json
from flowckpt.errors import InputError


def edits_from_texts(texts: Mapping[str, str]) -> dict[str, Callable[[Any], Any]]:
    """Return for each step what makes its output, given the annotation of its function.

    Args:
        texts: JSON, by step.

    Raises:
        InputError: a text is no JSON.
    """
    return {step: partial(_typed, step, _parsed(step, text)) for step, text in texts.items()}


def _parsed(step: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"--set {step}={text[:60]} is no JSON: {error}",
            parameter=step,
            remedy=f"Text stands in double quotes: --set '{step}=\"text\"'.",
        ) from error


def _typed(step: str, value: Any, annotation: Any) -> Any:
    try:
        return from_json(value, annotation)
    except MisfitError as misfit:
        place = f" at {step}{misfit.place}" if misfit.place else ""
        raise InputError(
            f"the output of step {step!r} must be {misfit.expected}{place}, got {short_value(misfit.got, 80)}",
            parameter=step,
            remedy="It is what the function of the step says that it returns.",
        ) from misfit
