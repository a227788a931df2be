"""The generations of a run: each continues the one before with new inputs and an empty history.

The record of the run describes the current generation and lists the most recent earlier ones, so its size does not
depend on their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from flowckpt.core.records.checkpoint import BIRTH
from flowckpt.core.records.listing import STARTED_BY
from flowckpt.core.records.result import StepResult
from flowckpt.core.records.wait import ENDED, TAKEN, encode_utc
from flowckpt.core.system.attrs_base import FieldEquality, lazy_frozen

KEY = "generation"
"""Metadata key, from the second generation on: the number of the current generation, and the earlier ones."""
KEPT = 10
"""The number of earlier generations listed by default."""
MOST_TAKEN = 256
"""At least this many ids of taken messages are remembered: a sender that crashed may resend one."""
_WAITS = ("approval", "sleep", "wait")
MOST_RESUMES = 64
"""The number of resumes of earlier generations that are remembered separately; older ones are merged."""
_MOST_REPLIES = 64 * 1024
"""The bytes of replies kept for senders that still wait for them; the newest reply is always kept."""

_STAYS = ("target", "tags", "base_path", "saving", "executors", "packages", "forked_from", BIRTH, STARTED_BY, ENDED)
"""The metadata that apply to all generations; all others are about the steps of one."""


@lazy_frozen(eq=False, repr=False)
class Generation(FieldEquality):
    """One generation of a run.

    Attributes:
        number: its number, from 1.
        started_at: when it started.
        inputs_hash: the digest of its inputs.
        attempts: its first and last attempt.
        steps: the number of results it recorded.
        ended_at: when the next one was about to start; None for the current one.
    """

    number: int
    started_at: datetime
    inputs_hash: str
    attempts: tuple[int, int]
    steps: int
    ended_at: datetime | None = None


def number_of(metadata: Mapping[str, Any]) -> int:
    """Return the number of the current generation of a run."""
    state = metadata.get(KEY)
    return int(state["number"]) if state else 1


def generation_start(metadata: Mapping[str, Any]) -> str:
    """Return when the current generation of a run started; empty for the first one."""
    state = metadata.get(KEY)
    return str(state["started_at"]) if state else ""


def note_resume(metadata: Mapping[str, Any], results: int, now: datetime) -> dict[str, Any]:
    """Return the metadata of a run in a later generation, with a note that it was resumed.

    Args:
        metadata: of its newest checkpoint.
        results: the number of its results.
        now: the time.
    """
    state = metadata[KEY]
    noted = _merge_resumes([*state.get("resumed", ()), [state["number"], results, encode_utc(now)]])
    return {**metadata, KEY: {**state, "resumed": noted}}


def _find_resumes(results: Iterable[StepResult]) -> list[list[Any]]:
    """Return when the first generation was resumed, as far as its results show."""
    found: list[list[Any]] = []
    latest = 0
    for position, each in enumerate(results):
        if each.attempt > latest and each.started_at is not None:
            # A wait starts before the resume that ends it; 1 ms allows for rounded times.
            waited = timedelta(milliseconds=max(0.0, each.duration_ms - 1)) if each.step_type in _WAITS else timedelta()
            found += [[1, position, encode_utc(each.started_at + waited)]] if latest else []
            latest = each.attempt
    return found


def _merge_resumes(resumes: list[list[Any]]) -> list[list[Any]]:
    """Return notes of resumes, the oldest merged if there are many, as if no result was recorded between them."""
    while len(resumes) > MOST_RESUMES:
        first, second, *others = resumes
        resumes = [[*min(first[:2], second[:2]), second[2]], *others]
    return resumes


def may_precede(metadata: Mapping[str, Any], earlier: Mapping[str, Any], *, results: int, saved_at: datetime) -> bool:
    """Return whether a checkpoint of an earlier generation may have been part of this run, which no longer has it.

    After a store was restored from a backup, the resume is newer than the lost checkpoints, and the run has fewer results
    than they had. Such checkpoints were not part of this run.

    Args:
        metadata: of a checkpoint of the run.
        earlier: the metadata of the checkpoint in question.
        results: the number of results of that checkpoint.
        saved_at: when that checkpoint was saved.
    """
    state, place = metadata[KEY], [number_of(earlier), results]
    listed = {each["number"]: each["started_at"] for each in state["former"]}
    if generation_start(earlier) and listed.get(number_of(earlier), generation_start(earlier)) != generation_start(
        earlier
    ):
        return False
    return not any(
        place > [number, count] and saved_at < datetime.fromisoformat(moment)
        for number, count, moment in state.get("resumed", ())
    )


def first_inputs_of(metadata: Mapping[str, Any], inputs_hash: str) -> str:
    """Return the digest of the inputs that a run was started with, given that of the current generation."""
    state = metadata.get(KEY)
    return str(state["first_inputs"]) if state else inputs_hash


def start_of_run(metadata: Mapping[str, Any]) -> datetime | None:
    """Return when a run was started, if its current generation is not the first; otherwise None."""
    try:
        return datetime.fromisoformat(metadata[KEY]["run_started_at"])
    except (KeyError, TypeError, ValueError):  # an imported run may contain anything
        return None


def former_generations(metadata: Mapping[str, Any]) -> list[Generation]:
    """Return the earlier generations that are still listed, oldest first."""
    return [
        Generation(
            each["number"],
            datetime.fromisoformat(each["started_at"]),
            each["inputs_hash"],
            (each["attempts"][0], each["attempts"][1]),
            each["steps"],
            datetime.fromisoformat(each["ended_at"]),
        )
        for each in metadata.get(KEY, {}).get("former", ())
    ]


def generations_of(
    metadata: Mapping[str, Any], *, inputs_hash: str, started_at: datetime, attempt: int, steps: int
) -> list[Generation]:
    """Return the listed generations of a run, oldest first, with the current one last.

    Args:
        metadata: of its newest checkpoint.
        inputs_hash: the digest of the inputs of that checkpoint.
        started_at: when the run was started.
        attempt: the attempt of that checkpoint.
        steps: the number of its results.
    """
    state = metadata.get(KEY)
    first, began = (1, started_at) if state is None else (state["attempt"], datetime.fromisoformat(state["started_at"]))
    return [*former_generations(metadata), Generation(number_of(metadata), began, inputs_hash, (first, attempt), steps)]


def list_taken(metadata: Mapping[str, Any], results: Iterable[StepResult]) -> list[str]:
    """Return the ids of the messages that this generation and earlier ones took, in the order of taking.

    Args:
        metadata: of the generation that ends.
        results: its results.
    """
    before = metadata.get(KEY, {}).get("taken", ())
    found = [*before, *metadata.get(TAKEN, ()), *(each.signal for each in results if each.signal)]
    return [*dict.fromkeys(reversed(found))][::-1]


def reply_to(metadata: Mapping[str, Any], signal_id: str) -> str | None:
    """Return the reply of an earlier generation to a message, as JSON of its recorded form; None if there is none."""
    return next((text for each, text in metadata.get(KEY, {}).get("replies", ()) if each == signal_id), None)


def _keep_replies(metadata: Mapping[str, Any], replies: Iterable[tuple[str, str]]) -> list[list[str]]:
    found = [*metadata.get(KEY, {}).get("replies", ()), *map(list, replies)]
    room = _MOST_REPLIES
    kept = 0
    for each in reversed(found):
        room -= len(each[1])
        if room < 0 and kept:
            break
        kept += 1
    return found[len(found) - kept :]


def next_metadata(
    metadata: Mapping[str, Any],
    present: Generation,
    *,
    attempt: int,
    now: datetime,
    taken: Sequence[str],
    replies: Iterable[tuple[str, str]],
    keep: int | None,
    results: Sequence[StepResult],
) -> dict[str, Any]:
    """Return the metadata of the next generation.

    Args:
        metadata: of the current one.
        present: the current one, as it ended.
        attempt: the attempt that starts the next one.
        now: the time.
        taken: the ids of messages that no later generation may take, in the order of taking.
        replies: the ids of messages that the current one replied to, each with the reply as JSON of its recorded form.
        keep: the number of earlier generations to list; None for all.
        results: those of the current generation.
    """
    ended = {
        "number": present.number,
        "started_at": encode_utc(present.started_at),
        "ended_at": encode_utc(now),
        "inputs_hash": present.inputs_hash,
        "attempts": [*present.attempts],
        "steps": present.steps,
    }
    former = [*metadata.get(KEY, {}).get("former", ()), ended]
    kept = {name: metadata[name] for name in _STAYS if name in metadata}
    if "limits" in metadata:
        kept["limits"] = {name: value for name, value in metadata["limits"].items() if name != "retries_used"}
    kept[KEY] = {
        "number": present.number + 1,
        "started_at": encode_utc(now.astimezone(UTC)),
        "attempt": attempt,
        "first_inputs": first_inputs_of(metadata, present.inputs_hash),
        "run_started_at": encode_utc(start_of_run(metadata) or present.started_at),
        "former": former if keep is None else former[-keep:],
    }
    if resumes := _merge_resumes([*metadata[KEY].get("resumed", ())] if KEY in metadata else _find_resumes(results)):
        kept[KEY]["resumed"] = resumes
    if taken:
        kept[TAKEN], kept[KEY]["taken"] = sorted(taken), [*taken]
    if found := _keep_replies(metadata, replies):
        kept[KEY]["replies"] = found
    return kept
