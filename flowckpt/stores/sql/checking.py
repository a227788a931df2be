"""The check of an SQL store: the database itself, and every run, result and large value in it."""

from __future__ import annotations

from collections.abc import Callable

from flowckpt.checkpoint.verified import verified_after
from flowckpt.codec.blob import Blob, Fetch
from flowckpt.counted import counted
from flowckpt.errors import CheckpointNotFoundError, FlowckptError
from flowckpt.stores.integrity import Finding
from flowckpt.stores.sql import rows, signals
from flowckpt.stores.sql.database import Database, Session
from flowckpt.stores.sql.description import run_infos
from flowckpt.stores.sql.image import RunImage, open_image, read_blob
from flowckpt.stores.sql.lineage import checkpoint_rows
from flowckpt.stores.sql.texts import id_text, moment_of, name_of, sql_time


def check_all(database: Database, fetch_for: Callable[[str], Fetch]) -> list[Finding]:
    """Verify the database and all runs in it.

    Args:
        database: the database.
        fetch_for: returns what reads the large values of a run.
    """
    findings = [Finding("", "corrupt", damage) for damage in database.damages()]
    try:
        found = database.read("", "check", lambda session: session.execute("SELECT workflow_id FROM runs ORDER BY run"))
    except FlowckptError as error:
        known = {finding.detail for finding in findings}  # the database may have said the very same of itself
        return findings if error.message in known else [*findings, Finding("", "corrupt", error.message)]
    for (key,) in found:
        workflow_id = name_of(key)
        finding = check_run(database, workflow_id, fetch_for(workflow_id))
        if finding is not None:
            findings.append(finding)
    return findings


def check_run(database: Database, workflow_id: str, fetch: Fetch) -> Finding | None:
    """Verify a run with all that its attempts left behind; None where there is none.

    Args:
        database: the database.
        workflow_id: the run.
        fetch: reads its large values.
    """
    key = id_text(workflow_id)

    def check(session: Session) -> Finding | None:
        now = open_image(session, workflow_id, key)
        if now is None:
            return None
        run_infos(session, key)  # what a list shows of it
        begun = session.execute("SELECT attempt FROM attempts WHERE run = ? AND begun_at IS NOT NULL", (now.run,))
        kept, results = 0, 0
        for (attempt,) in begun:
            image = open_image(session, workflow_id, key, attempt=attempt)
            assert image is not None, "the transaction is of one moment"
            results, found = _check_image(session, image, attempt, fetch)
            if now.links and attempt == now.links[-1].attempt:
                kept = found
        for digest, size in session.execute("SELECT digest, size FROM blobs WHERE run = ?", (now.run,)):
            read_blob(session, workflow_id, key, digest, size)
        signals.sent(session, workflow_id)
        return (
            Finding(workflow_id, "ok", f"{counted(kept, 'checkpoint')}, {counted(results, 'result')}")
            if begun
            else None
        )

    try:
        return database.read(workflow_id, "check", check)
    except CheckpointNotFoundError:  # it was cleared meanwhile
        return None
    except FlowckptError as error:
        return Finding(workflow_id, "corrupt", error.message)


def _check_image(session: Session, image: RunImage, attempt: int, fetch: Fetch) -> tuple[int, int]:
    image.read_results(session, fetch)
    _check_columns(session, image, attempt)
    _check_verified(session, image)
    found = image.all(session, fetch)
    for blobs in image.history.blobs.values():
        for blob in blobs.values():
            blob.content()
    for data in found:
        for held in data.held_values:
            if isinstance(held, Blob):
                held.content()
    return len(image.history.results), len(found)


def _check_verified(session: Session, image: RunImage) -> None:
    """Compare what the checkpoints say of the evidence, which lists show, with what the results say."""
    answer: bool | None = None
    before = 0
    columns = "sequence, steps, verified"
    for sequence, steps, said in reversed(checkpoint_rows(session, image.run, image.links, columns)):
        answer = verified_after(answer, image.history.results[before:steps])
        before = steps
        if (None if said is None else bool(said)) is not answer:
            raise image.corrupt(f"checkpoint {sequence}", "its column verified does not say what its results say")


def _check_columns(session: Session, image: RunImage, attempt: int) -> None:
    """Compare the columns of an attempt's own results, which people query, with the documents, which programs read."""
    columns = ", ".join(name for name in rows.RESULT_COLUMNS if name != "document")
    found = session.execute(
        f"SELECT {columns}, CAST(document AS TEXT) FROM step_results WHERE run = ? AND attempt = ? ORDER BY position",  # noqa: S608
        (image.run, attempt),
    )
    place = list(rows.RESULT_COLUMNS).index("started_at")
    for row in found:
        held = [*row]
        position, text = held[2], held[-1]
        if position > len(image.history.results):
            raise image.corrupt(f"result {position} of attempt {attempt}", "it is behind the end of its attempt")
        held[6] = bool(held[6])
        held[place] = None if held[place] is None else sql_time(moment_of(held[place]))
        result = image.history.results[position - 1]
        if tuple(held) != rows.result_row(result, text.encode(), image.run, attempt, position):
            raise image.corrupt(
                f"result {position} of attempt {attempt}", "its columns do not say what its document says"
            )
