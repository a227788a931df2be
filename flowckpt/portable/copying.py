"""A run from one store to another."""

from __future__ import annotations

import attrs

from flowckpt.checkpoint.reference import Owner
from flowckpt.codec import Json
from flowckpt.portable.arriving import brought_in
from flowckpt.portable.gathering import gathered
from flowckpt.portable.names import checked_new_id
from flowckpt.portable.writing import identity_of
from flowckpt.stores.base import CheckpointStore


@attrs.frozen
class CopiedRun:
    """A run that was copied.

    Attributes:
        workflow_id: its id in the target.
        source_id: its id in the source.
        attempts: attempts that saved something.
        checkpoints: checkpoints, in all.
        left_behind: how many of these no longer count.
        steps: results that its newest checkpoint holds.
        is_new: whether it was copied now; False where the very same run was there already.
        owner: the process that ran it in the source meanwhile; None where it rested.
    """

    workflow_id: str
    source_id: str
    attempts: int
    checkpoints: int
    steps: int
    is_new: bool
    owner: Owner | None = None
    left_behind: int = 0

    def to_document(self) -> dict[str, Json]:
        """Return it as plain JSON: an item of what `copy --json` prints."""
        document = attrs.asdict(self, filter=lambda attribute, _: attribute.name != "owner")
        return {**document, "is_live": self.owner is not None}


async def copy_run(
    source: CheckpointStore, target: CheckpointStore, workflow_id: str, *, new_id: str | None = None
) -> CopiedRun:
    """Copy a whole run into another store: all attempts, checkpoints, results and large values, as they are.

    The source is only read, and its copy knows nothing of it: whoever resumes both runs the steps twice. A copy that
    was interrupted left nothing, and one that was made already is found to be there; so it can always be done again.

    Args:
        source: where the run lies.
        target: where it is to lie, too.
        workflow_id: the run.
        new_id: the id that it is to have in the target; the same where not given.

    Raises:
        InputError: the given id can be no id of a run.
        CheckpointNotFoundError: there is no such run.
        CheckpointCorruptedError: a record is damaged.
        RunExistsError: another run has the id in the target, or the same run that has gone on since.
        RunLockedError: another process is about to begin it there.
        StoreAbilityError: the source cannot hand out a whole run, or the target take one in.
        CheckpointStorageError: a store failed.
    """
    named = workflow_id if new_id is None else checked_new_id(new_id)
    run = await gathered(source, workflow_id)
    is_new = await brought_in(target, named, identity_of(workflow_id, run.checkpoints), run.afresh)
    return CopiedRun(
        named,
        workflow_id,
        len({data.attempt for data in run.checkpoints}),
        len(run.checkpoints),
        len(run.latest.step_results),
        is_new,
        run.owner,
        run.left_behind,
    )
