"""The errors of stores: of their records, keys, places and owners. Import them from `flowckpt.errors`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowckpt.core.system.declared import FlowckptError, OfRun, derived, field, shell_word


class StoreSpecError(FlowckptError):
    """A store specification is invalid."""

    spec: str = field("the specification as given")


class UntrustedStoreError(FlowckptError):
    """Another user can change a store, its settings or a program, and so decide which code would run."""

    path: str = field("the refused store, settings file or program", kw_only=False)
    reason: str = field("the place that another user can change, and why")
    message: str = derived("{path} is not trusted, because other users could choose the code that runs: {reason}")
    remedy: str = (
        "If you trust them, list it in FLOWCKPT_SAFE_STORES, or as safe_stores in ~/.config/flowckpt/config.toml."
    )


class CheckpointNotFoundError(FlowckptError):
    """The store has no such run, or the run has no such checkpoint."""

    workflow_id: str = field("the requested run", kw_only=False)
    checkpoint_id: str | None = field("the requested checkpoint, or None for the latest", default=None, kw_only=False)
    detail: str = field("further details; may be empty", default="")
    message: str = derived("{missing}[ ({detail})]")
    remedy: str = "See 'flowckpt {command}'."

    def _words(self) -> Mapping[str, object]:
        run, checkpoint = self.workflow_id, self.checkpoint_id
        return {
            "missing": f"run {run!r} has no checkpoint {checkpoint!r}" if checkpoint else f"no run {run!r}",
            "command": f"show {shell_word(run)} --checkpoints" if checkpoint else "list",
        }


class CheckpointCorruptedError(FlowckptError):
    """A record exists but is damaged: its checksum, chain or form is wrong."""

    workflow_id: str = field("the run; empty if the damage is in no run, or that is unknown", kw_only=False)
    location: str = field("the file")
    detail: str = field("what is wrong, and where in the file")
    message: str = derived("{record}: {detail}")
    remedy: str = (
        "Nothing was changed. 'flowckpt store check' lists what is damaged. Restore the file from a backup, "
        "or keep what is intact: 'flowckpt store repair RUN'."
    )

    def _words(self) -> Mapping[str, object]:
        run, place = self.workflow_id, self.location
        return {"record": f"the record of run {run!r} is corrupt at {place}" if run else f"{place} is corrupt"}


class ForeignRecordError(FlowckptError):
    """A record belongs to another run, or continues another history than the store holds."""

    workflow_id: str = field("the requested run")
    found: str = field("what was found instead")


class ImportRefusedError(FlowckptError):
    """A file to import is truncated, changed, malformed, or exceeds a limit; nothing was imported."""

    detail: str = field("what is wrong", kw_only=False)
    file: str = field("the file", default="the file")
    line: int = field("its line, from 1; 0 if none is concerned", default=0)
    message: str = derived("{file}[, line {line}]: {detail}; nothing was imported")


class SourceUnreadableError(FlowckptError):
    """A file to import cannot be read."""

    file: str = field("the file", kw_only=False)
    detail: str = field("what the system says")
    message: str = derived("{file} cannot be read: {detail}")
    remedy: str = derived("")


class StoreAbilityError(FlowckptError):
    """A third-party store lacks the ability that an operation needs."""

    store: str = field("what the store calls itself", kw_only=False)
    ability: str = field("the missing `flowckpt.stores.Ability`, as text")
    purpose: str = field("the operation")
    message: str = derived("{store} cannot {purpose}: it lacks {ability}")
    remedy: str = derived("Use another store, or ask its author for flowckpt.stores.{ability}.")


class KeyFileError(FlowckptError):
    """A key file is missing, invalid, or readable by other users."""

    path: str = field("the file")


class KeyMissingError(FlowckptError):
    """A store or record is sealed with a key, and none was given; this does not indicate damage."""

    workflow_id: str = field("the run; empty if the whole store is concerned", kw_only=False)
    key_id: str = field("the key that sealed it; empty if unknown", default="")
    message: str = derived("the store[ of run {workflow_id!r}] is protected by a key[ {key_id}], and no key was given")
    remedy: str = derived(
        "Name the key file: FLOWCKPT_KEY_FILE=FILE, or in Python FileCheckpointStore(…, key_file=FILE)."
    )


class WrongKeyError(FlowckptError):
    """A store or record is sealed with another key than the given ones; this does not indicate damage."""

    workflow_id: str = field("the run; empty if the whole store is concerned", kw_only=False)
    key_id: str = field("the key that sealed it")
    known: Sequence[str] = field("the ids of the given keys, newest first")
    is_whole_store: bool = field("whether the store as a whole has none of these keys", default=False)
    message: str = derived("{what} is sealed with key {key_id}; the key file has {known}")
    remedy: str = derived("{advice}")

    def _words(self) -> Mapping[str, object]:
        run = f"run {self.workflow_id!r}" if self.workflow_id else "the store"
        return {
            "what": f"{run} is in a store that" if self.is_whole_store and self.workflow_id else run,
            "advice": "Name the key file of the store. To change its key: 'flowckpt store key rotate FILE'."
            if self.is_whole_store
            else "Name the right key file, or add the old key after the new one in it: old records need old keys.",
        }


class UnauthenticatedRecordError(OfRun, FlowckptError):
    """A record was written without the given key: before the key existed, or by someone without it."""

    location: str = field("the file")
    message: str = derived("{location} of run {workflow_id!r} was written without a key, so anyone may have written it")
    remedy: str = derived(
        "If the run is older than the key, look at it without the key, and then say that you trust it: "
        "'flowckpt store trust {run}'. Else restore it from a backup."
    )


class CheckpointStorageError(FlowckptError):
    """The medium of a store failed."""

    workflow_id: str = field("the run, or an empty string", default="")
    operation: str = field("what the store was doing", default="")
    is_outcome_unknown: bool = field("whether the data may have reached the medium despite the error", default=False)

    ref = ""  # the checkpoint that was saved or loaded, as RUN@CHECKPOINT
    cause = property(lambda self: self.__cause__, doc="The error of the medium, or None.")


class DiskFullError(CheckpointStorageError):
    """The disk of a store, or the quota of the user, is full."""

    remedy: str = (
        "Make room; nothing that was acknowledged is lost. 'flowckpt store clear RUN', 'flowckpt store prune --keep N' and "
        "'--older-than AGE' remove whole runs also on a full disk."
    )


class SuspensionUnsavedError(CheckpointStorageError):
    """A run with `on_save_error="continue"` failed, because its suspension could not be saved; nothing was undone."""

    workflow_id: str = field("the run", kw_only=False)
    waits: Sequence[str] = field("what it waits for, one line each")
    operation: str = derived("save")
    is_outcome_unknown: bool = derived(True)
    message: str = derived("run {workflow_id!r} waits, and that could not be saved, so it is not suspended: {waits}")
    remedy: str = derived("A resume continues from the last checkpoint, if there is one, and waits again.")


class ReadOnlyStoreError(CheckpointStorageError):
    """A store is readable but not writable here; nothing was changed."""

    store: str = field("its place, without a password", kw_only=False)
    reason: str = field("why it cannot be written")
    operation: str = "write"
    is_outcome_unknown: bool = derived(False)
    message: str = derived("the store {store} is read-only here: cannot {operation}[ run {workflow_id!r}]: {reason}")
    remedy: str = "Use an account that may write to the store. Reading still works: 'flowckpt list'."


class VanishedError(CheckpointStorageError):
    """A store was removed or replaced during a run: its directory, its database file, or the objects of its bucket."""

    store: str = field("its place", kw_only=False)
    workflow_id: str = field("the run")
    operation: str = derived("save")
    is_outcome_unknown: bool = derived(True)
    message: str = derived("the store {store} is gone: it was removed or replaced during run {workflow_id!r}")
    remedy: str = derived("Put it back if it was moved, or start the run again. Let nothing remove a store in use.")


class MirrorError(CheckpointStorageError):
    """The mirror of a store cannot take a checkpoint that the store has."""

    workflow_id: str = field("the run", kw_only=False)
    store: str = field("the store")
    mirror: str = field("its mirror")
    detail: str = field("what is wrong with the mirror")
    differs: bool = field("whether the mirror has a history that the store does not have", default=False)
    operation: str = derived("mirror")
    is_outcome_unknown: bool = derived(False)
    message: str = derived("the mirror {mirror} of the store {store} cannot take run {workflow_id!r}: {detail}")
    remedy: str = "A resume brings the mirror level. To run without waiting for it: --on-mirror-error continue."


class UnsupportedFilesystemError(CheckpointStorageError):
    """The directory of a store is on a network or FUSE file system, which cannot guarantee a single writer."""

    path: str = field("the directory", kw_only=False)
    filesystem: str = field("the type of the file system, such as `nfs4`")
    workflow_id: str = derived("")
    operation: str = derived("open")
    is_outcome_unknown: bool = derived(False)
    message: str = derived("{path} is on a file system of type {filesystem!r}, which cannot guarantee a single writer")
    remedy: str = derived("Use a local directory, or accept the risk with allow_filesystems=({filesystem!r},).")


class SaveConflictError(OfRun, FlowckptError):
    """A checkpoint has a sequence that the run already has or has passed; only for programs that call `save`."""

    sequence: int = field("the sequence of the refused checkpoint")
    last_sequence: int = field("the highest sequence of the run")
    message: str = derived("checkpoint {sequence} of run {workflow_id!r} cannot be saved after {last_sequence}")
    remedy: str = derived("Number checkpoints 1, 2, 3 …; start from the 'last_sequence' that acquire() returns.")


class RunLockedError(OfRun, FlowckptError):
    """Another live process owns the run."""

    holder: str = field("the owner: process, host, since when")
    message: str = derived("run {workflow_id!r} is owned by {holder}")
    remedy: str = derived("Wait for it or stop it. If that process is dead or stopped for good, resume with --steal.")


class RunMovedOnError(OfRun, FlowckptError):
    """The run is no longer at the requested attempt, because another process has continued it; nothing was changed."""

    expected: int = field("the requested attempt")
    attempt: int = field("the current attempt")
    message: str = derived("run {workflow_id!r} is at attempt {attempt}, not {expected}: a process has continued it")
    remedy: str = derived("Nothing was changed. See its state with 'flowckpt show {run}'.")


class FencedError(OfRun, FlowckptError):
    """A save came from a writer that no longer owns the run; it was not acknowledged."""

    attempt: int = field("the attempt of the refused writer")
    newest_attempt: int | None = field("the newest attempt, or None if the run is gone")
    message: str = derived("attempt {attempt} of run {workflow_id!r} may not save any more: {cause}")
    remedy: str = derived("This save was not acknowledged. {advice}")

    def _words(self) -> Mapping[str, object]:
        if self.newest_attempt is None:
            return {"cause": "the run was cleared", "advice": "Another process removed what this attempt had saved."}
        return {
            "cause": f"attempt {self.newest_attempt} has taken over",
            "advice": f"The new owner has the earlier checkpoints: 'flowckpt show {shell_word(self.workflow_id)}'.",
        }


class UnsupportedSchemaError(FlowckptError):
    """A record was written by a newer flowckpt, or it has upgraded an open database."""

    found: object = field("the version in the record")
    supported: int = field("the newest version that this program reads")
    what: str = field("what has the version, as `record`", default="record")
    detail: str = field("further details; may be empty", default="")
    message: str = derived("the {what} has schema version {found!r:.80}; flowckpt reads up to {supported}[: {detail}]")
    remedy: str = "{advice}"

    def _words(self) -> Mapping[str, object]:
        is_version = isinstance(self.found, str) or (type(self.found) is int and self.found > self.supported)
        return {"advice": "Upgrade flowckpt." if is_version else "It is not a version: the record is damaged."}
