"""Which page of the API reference lists which public name. A test checks that each name is on one page."""

import attrs

PUBLIC = (
    "flowckpt",
    "flowckpt.errors",
    "flowckpt.events",
    "flowckpt.evidence",
    "flowckpt.stores",
    "flowckpt.maintenance",
    "flowckpt.otel",
    "flowckpt.testing",
)


@attrs.frozen
class Page:
    """A page of the reference.

    Attributes:
        slug: the name of its file.
        title: its heading.
        summary: one line for the index.
        entries: its names in their order: `X` for `flowckpt.X`, others dotted in full.
        intro: Markdown before the first name.
        members: for a name, the dotted class whose methods are listed below it instead of its own.
        hidden: `Class.member` patterns that are for flowckpt itself, and not listed.
        text: Markdown for a name that has no docstring.
        constructed: records of which programs make objects, so that their constructor is shown.
    """

    slug: str
    title: str
    summary: str
    entries: tuple[str, ...]
    intro: str = ""
    members: dict[str, str] = attrs.field(factory=dict)
    hidden: tuple[str, ...] = ()
    text: dict[str, str] = attrs.field(factory=dict)
    constructed: tuple[str, ...] = ()


def _from(module: str, names: str) -> tuple[str, ...]:
    return tuple(f"{module}.{name}" for name in names.split())


PAGES = (
    Page(
        "language",
        "The language",
        "Workflows, steps, and what a step can use while it runs.",
        (
            "workflow",
            "Workflow",
            "step",
            "Step",
            "parallel",
            "continue_as",
            "now",
            "uuid",
            "random",
            "patched",
            "publish",
            "current_step",
            "CurrentStep",
            "Secret",
            "Approval",
            "CommandOutput",
            "register_type",
            "workflow_logger",
            "check_determinism",
            "DeterminismReport",
        ),
        intro="The [tutorial](../../tutorial.md) introduces workflows and steps.",
        members={"step": "flowckpt.core.dsl.StepBuilder"},
        hidden=("Step.*", "Workflow.bind"),
    ),
    Page(
        "running",
        "Running",
        "Start, resume, plan, answer, roll back and cancel runs.",
        (
            "WorkflowEngine",
            "RunOptions",
            "run_sync",
            "run",
            "resume_sync",
            "resume",
            "WorkflowResult",
            "StepCounts",
            "RunInterrupted",
            "in_sync",
            "InSync",
            "configured_engine",
            "Hooks",
            *_from("flowckpt.otel", "Telemetry export_by_environment"),
            "configured_options",
            "Published",
            "RunHistory",
            "Moment",
            "ResumePlan",
            "PlannedStep",
            "Decision",
            "RolledBack",
            "Forked",
            "Sent",
            "Cancelled",
            "crash_loop",
            "ProcessExecutor",
            "DaskExecutor",
            "open_executor",
            "way_up",
            "WayUp",
            "__version__",
        ),
        intro="See [run from Python](../../how-to/run-from-python.md), [resume safely](../../how-to/resume-safely.md) and "
        "[executors](../../how-to/executors.md).",
        hidden=("RunOptions.*", "*.submit*", "*Executor.stop", "*Executor.is_at_work", "*Executor.shutdown"),
        constructed=("RunOptions",),
        text={
            "__version__": "The version of the package, as text.",
            "way_up": "In a worker, the connection to the engine: a context variable with a [`WayUp`](#wayup), or None.",
        },
    ),
    Page(
        "records",
        "Results and records",
        "Results, checkpoints and other records of a run.",
        (
            "CheckpointData",
            "StepResult",
            "StepError",
            "Reason",
            "Status",
            "CheckpointRef",
            "RunInfo",
            "Owner",
            "Wait",
            "WaitKind",
            "Signal",
            "PartialState",
            "History",
            "HistoryView",
        ),
        intro="All records are frozen. The [record format](../record-format.md) describes them on disk.",
        hidden=(
            "*.held_*",
            "CheckpointData.carries_same_objects",
            "CheckpointData.differs_only_in_position",
            "Wait.is_newer_than",
            "History.encoded_between",
            "History.chain_at",
            "History.extend",
            "History.forked",
            "History.known_to_share",
            "RunInfo.with_owner",
        ),
        constructed=("CheckpointData", "StepResult", "StepError"),
    ),
    Page(
        "events",
        "Events",
        "Progress reports of a run.",
        _from(
            "flowckpt.events",
            "Event WorkflowStarted WorkflowResumed WorkflowContinued StepStarted StepOutput StepProgress StepStateDropped StepRestored StepsRestored "
            "StepRetrying StepCompleted StepFailed StepAdopted ApprovalVoided SignalSetAside EvidenceVerified EvidenceFailed CheckpointSaved "
            "CheckpointFailed WorkflowWaiting WorkflowSuspended RollbackStarted RollbackCompleted WorkflowCompleted "
            "WorkflowFailed WorkflowCancelled CrashLoopDetected",
        ),
        intro="[Events](../events.md) has their order.",
    ),
    Page(
        "stores",
        "Stores",
        "Places for checkpoints, and their abilities.",
        (
            "open_store",
            "FileCheckpointStore",
            "MemoryCheckpointStore",
            "MirroredStore",
            *_from("flowckpt.stores", "SqliteCheckpointStore PostgresCheckpointStore ObjectCheckpointStore KeyRing"),
            "CheckpointStore",
            *_from(
                "flowckpt.stores",
                "StoreBase Ability adapt Lease RunFilter find_runs runs_of_status RunSurvey Selection Compacted Finding Loss Repaired "
                "store_statistics StoreStatistics DayStatistics RunStatistics ClaimStatistics FailureStatistics FigureStatistics "
                "StepStatistics encode_head decode_head as_view decode_result dumps refused_as_encoding_error check_content",
            ),
        ),
        intro="[What each store can do](../stores.md) says which store has which ability; "
        "[write a store](../../how-to/write-a-store.md) uses the functions at the end.",
        constructed=("RunFilter", "Selection"),
    ),
    Page(
        "evidence",
        "Evidence",
        "Claims about the outside world, and their verification.",
        (
            "Evidence",
            "EvidencePack",
            "EvidenceType",
            "EvidenceVerifier",
            *_from(
                "flowckpt.evidence",
                "artifact_exists file_sha256 directory_digest command_exit db_row network_reachable api_response "
                "process_exists container_running predicate register_database register_predicate Verdict VerdictStatus "
                "VerificationReport PackOutcome Moment Mode State Capture StepFacts Limits AllowedHost Check CheckContext Outcome "
                "MalformedClaimError RefusedClaimError UncheckableClaimError CheckTimeoutError",
            ),
        ),
        intro="[Evidence](../evidence.md) defines the kinds of claims and the answers, the "
        "[guide](../../how-to/evidence.md) shows how to use them.",
        constructed=("Evidence", "EvidencePack", "StepFacts", "Limits", "AllowedHost", "Outcome"),
    ),
    Page(
        "policy",
        "Triggers and policy",
        "When checkpoints are taken, and which ones stay.",
        (
            "TimeTrigger",
            "StepCountTrigger",
            "CompositeTrigger",
            "Trigger",
            "Progress",
            "asks_for_checkpoint",
            "Retention",
            "OnSuccess",
            "Checkpointer",
        ),
        intro="See [triggers](../../how-to/triggers.md) and [retention](../../how-to/retention.md).",
        hidden=("Checkpointer.*", "Retention.has_limits"),
        constructed=("TimeTrigger", "StepCountTrigger", "CompositeTrigger", "Progress", "Retention"),
    ),
    Page(
        "loops",
        "Plain loops",
        "Checkpoints without the workflow language.",
        ("CheckpointManager", "CommittedStep", "TaskCheckpoint", "StartedStep", "RestoredTask"),
        intro="See [checkpoint a loop](../../how-to/checkpoint-a-loop.md).",
        hidden=("*.held_*", "TaskCheckpoint.of"),
    ),
    Page(
        "maintenance",
        "Maintenance",
        "Prune, export, import and copy runs.",
        (
            "prune",
            *_from(
                "flowckpt.maintenance",
                "prune_checkpoints PruneReport PrunedRun removable Resting export_run export_documents ExportedRun "
                "import_run ImportLimits ImportedRun copy_run CopiedRun export_document read_export",
            ),
        ),
        intro="See [retention](../../how-to/retention.md) and [move a run](../../how-to/move-a-run.md).",
        constructed=("ImportLimits", "Resting"),
    ),
    Page(
        "testing",
        "Testing",
        "Tests of your own pipelines, stores and kinds of evidence.",
        _from(
            "flowckpt.testing",
            "explore_crashes CrashReport CrashFinding CrashesFoundError WorkflowTester FakeClock "
            "CheckpointStoreContract RetentionContract EvidenceContract",
        ),
        intro="See [test a workflow](../../how-to/test-a-workflow.md) and [write a store](../../how-to/write-a-store.md).",
        hidden=("*.test_*", "CheckpointStoreContract.make_two_owners", "*.list_ids", "*.fill"),
    ),
    Page(
        "errors",
        "Errors",
        "Every error and its attributes.",
        (
            "FlowckptError",
            *_from(
                "flowckpt.errors",
                "WorkflowDefinitionError StepDefinitionError StepNotYieldedError TargetError InputError SecretMissingError "
                "SettingError EncodingError DecodingError EvidenceError EvidenceCaptureError "
                "EvidenceNotVerifiedError StepFilesError StepFailedError FanOutFailedError StepTimeoutError StepStoppedError CommandFailedError "
                "ExecutorError UnknownExecutorError NotSendableError WorkerDiedError RunSuspendedError "
                "NoReplyError SignalRefusedError ApprovalRejectedError ApprovalStaleError RunExistsError RunNotCompletedError FinalError RunFinalError "
                "InputMismatchError WorkflowChangedError StaleStepError StaleCheckpointError StepInDoubtError "
                "CrashLoopError StepNotFoundError StepNotStartedError NotUndoableError RunUndoneError "
                "RunCancelledError CancelRefusedError RequestPendingError NoAsyncioError "
                "RunLockedError RunMovedOnError FencedError StoreSpecError UntrustedStoreError StoreAbilityError "
                "CheckpointNotFoundError CheckpointCorruptedError ForeignRecordError UnsupportedSchemaError "
                "SaveConflictError CheckpointStorageError DiskFullError SuspensionUnsavedError ReadOnlyStoreError VanishedError "
                "UnsupportedFilesystemError MirrorError KeyFileError KeyMissingError WrongKeyError UnauthenticatedRecordError "
                "ImportRefusedError SourceUnreadableError",
            ),
        ),
        intro="Every error is a [`FlowckptError`](#flowckpterror). [Errors and exit codes](../errors.md) lists the codes.",
    ),
)
