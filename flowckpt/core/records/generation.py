"""The generations of a run: each continues the one before with new inputs and an empty history.

The record of the run describes the present generation, and lists the ones before it, the oldest of them left out. So its size
does not depend on how many there were.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from flowckpt.core.records.checkpoint import BIRTH
from flowckpt.core.records.listing import STARTED_BY
from flowckpt.core.records.result import StepResult
from flowckpt.core.records.wait import ENDED, TAKEN, moment_text
from flowckpt.core.system.attrs_base import FieldEquality, lazy_frozen

KEY = "generation"
"""In the metadata of a run that has continued as another generation: which one it is, and what came before."""
KEPT = 10
"""How many former generations are listed by default."""
MOST_TAKEN = 256
"""So many ids of messages that earlier generations took are remembered at least: a sender that crashed may send one again."""
_WAITS = ("approval", "sleep", "wait")
MOST_RESUMES = 64
"""So many resumes of earlier generations are remembered one by one; older ones are joined."""
_MOST_REPLIES = 64 * 1024
"""So many bytes of replies stay for senders that still wait for them; the newest reply always does."""

_STAYS = ("target", "tags", "base_path", "saving", "executors", "packages", "forked_from", BIRTH, STARTED_BY, ENDED)
"""The metadata that hold for all generations; everything else is about the steps of one."""


@lazy_frozen(eq=False, repr=False)
class Generation(FieldEquality):
    """One generation of a run.

    Attributes:
        number: its number, from 1.
        started_at: when it started.
        inputs_hash: the digest of its inputs.
        attempts: its first attempt and its last one.
        steps: how many results it recorded.
        ended_at: when the next one was about to start; None for the present one.
    """

    number: int
    started_at: datetime
    inputs_hash: str
    attempts: tuple[int, int]
    steps: int
    ended_at: datetime | None = None


def number_of(metadata: Mapping[str, Any]) -> int:
    """Return the number of the present generation of a run; 1 for a run that has had no other."""
    said = metadata.get(KEY)
    return int(said["number"]) if said else 1


def begun_at(metadata: Mapping[str, Any]) -> str:
    """Return when the present generation of a run started; empty for its first one."""
    said = metadata.get(KEY)
    return str(said["started_at"]) if said else ""


def resumed(metadata: Mapping[str, Any], results: int, now: datetime) -> dict[str, Any]:
    """Return the metadata of a run that is resumed in a later generation, with a note of that.

    Args:
        metadata: of its newest checkpoint.
        results: how many results that has.
        now: the time.
    """
    said = metadata[KEY]
    noted = _fewer([*said.get("resumed", ()), [said["number"], results, moment_text(now)]])
    return {**metadata, KEY: {**said, "resumed": noted}}


def _resumes_in(results: Iterable[StepResult]) -> list[list[Any]]:
    """Return when the first generation was resumed, as far as its results tell."""
    found: list[list[Any]] = []
    latest = 0
    for position, each in enumerate(results):
        if each.attempt > latest and each.started_at is not None:
            # A wait starts before the resume that ends it; less what its times are rounded by.
            waited = timedelta(milliseconds=max(0.0, each.duration_ms - 1)) if each.step_type in _WAITS else timedelta()
            found += [[1, position, moment_text(each.started_at + waited)]] if latest else []
            latest = each.attempt
    return found


def _fewer(resumes: list[list[Any]]) -> list[list[Any]]:
    """Return notes of resumes, the oldest joined if there are many: as if no result were made between them."""
    while len(resumes) > MOST_RESUMES:
        first, second, *others = resumes
        resumes = [[*min(first[:2], second[:2]), second[2]], *others]
    return resumes


def may_precede(metadata: Mapping[str, Any], earlier: Mapping[str, Any], *, results: int, saved_at: datetime) -> bool:
    """Return whether a run may have had a checkpoint of an earlier generation, which it has not kept.

    A store that was restored from a backup is resumed after the loss. So the checkpoints that it lost are older than that
    resume, and have more results than the run had then.

    Args:
        metadata: of a checkpoint of the run.
        earlier: the metadata of the checkpoint in question.
        results: how many results that has.
        saved_at: when it was saved.
    """
    said, place = metadata[KEY], [number_of(earlier), results]
    listed = {each["number"]: each["started_at"] for each in said["former"]}
    if begun_at(earlier) and listed.get(number_of(earlier), begun_at(earlier)) != begun_at(earlier):
        return False
    return not any(
        place > [number, count] and saved_at < datetime.fromisoformat(moment)
        for number, count, moment in said.get("resumed", ())
    )


def first_inputs_of(metadata: Mapping[str, Any], inputs_hash: str) -> str:
    """Return the digest of the inputs that a run was started with, given that of the present generation."""
    said = metadata.get(KEY)
    return str(said["first_inputs"]) if said else inputs_hash


def start_of_run(metadata: Mapping[str, Any]) -> datetime | None:
    """Return when a run was started whose present generation is not its first; None for any other."""
    try:
        return datetime.fromisoformat(metadata[KEY]["run_started_at"])
    except (KeyError, TypeError, ValueError):  # of an imported run, it may be anything
        return None


def former_generations(metadata: Mapping[str, Any]) -> list[Generation]:
    """Return the generations before the present one that are still listed, oldest first."""
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
    """Return the generations of a run that are listed, oldest first; the last one is the present one.

    Args:
        metadata: of its newest checkpoint.
        inputs_hash: the digest of the inputs of that checkpoint.
        started_at: when the run was started.
        attempt: the attempt of that checkpoint.
        steps: how many results it has.
    """
    said = metadata.get(KEY)
    first, began = (1, started_at) if said is None else (said["attempt"], datetime.fromisoformat(said["started_at"]))
    return [*former_generations(metadata), Generation(number_of(metadata), began, inputs_hash, (first, attempt), steps)]


def taken_so_far(metadata: Mapping[str, Any], results: Iterable[StepResult]) -> list[str]:
    """Return the ids of the messages that this generation and those before took, the last taken last.

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


def _replies(metadata: Mapping[str, Any], replies: Iterable[tuple[str, str]]) -> list[list[str]]:
    found = [*metadata.get(KEY, {}).get("replies", ()), *map(list, replies)]
    room = _MOST_REPLIES
    kept = 0
    for each in reversed(found):
        room -= len(each[1])
        if room < 0 and kept:
            break
        kept += 1
    return found[len(found) - kept :]


def continued(
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
    """Return the metadata of the generation that follows the present one.

    Args:
        metadata: of the present one.
        present: how it ended.
        attempt: the attempt that starts the next one.
        now: the time.
        taken: the ids of messages that no later generation may take, the last taken last.
        replies: the ids of messages that it replied to, each with the reply as JSON of its recorded form.
        keep: how many former generations are listed; None for all.
        results: those of the present generation.
    """
    ended = {
        "number": present.number,
        "started_at": moment_text(present.started_at),
        "ended_at": moment_text(now),
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
        "started_at": moment_text(now.astimezone(UTC)),
        "attempt": attempt,
        "first_inputs": first_inputs_of(metadata, present.inputs_hash),
        "run_started_at": moment_text(start_of_run(metadata) or present.started_at),
        "former": former if keep is None else former[-keep:],
    }
    if resumes := _fewer([*metadata[KEY].get("resumed", ())] if KEY in metadata else _resumes_in(results)):
        kept[KEY]["resumed"] = resumes
    if taken:
        kept[TAKEN], kept[KEY]["taken"] = sorted(taken), [*taken]
    if found := _replies(metadata, replies):
        kept[KEY]["replies"] = found
    return kept
