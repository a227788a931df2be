"""The public names and signatures are frozen: what people import and call changes on purpose only.

A name that is added or removed is added to or removed from these lists in the same commit, and the changelog says so.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
from pathlib import Path

import attrs
import pytest

import flowckpt
from flowckpt import errors, evidence
from flowckpt.evidence import EvidenceType, VerificationReport

NAMES = {
    "flowckpt": """
    Approval StartedStep Cancelled CheckpointData CheckpointManager CheckpointRef CheckpointStore Checkpointer
    CommandOutput CommittedStep CompositeTrigger CurrentStep DaskExecutor Decision DeterminismReport Evidence
    EvidencePack EvidenceType EvidenceVerifier FileCheckpointStore FlowckptError Forked History HistoryView Hooks InSync
    MemoryCheckpointStore MirroredStore Moment OnSuccess Owner PartialState PlannedStep ProcessExecutor Progress Reason RestoredTask
    Published ResumePlan Retention RolledBack RunHistory RunInfo RunInterrupted RunOptions Secret Sent Signal Status Step
    StepCountTrigger StepCounts StepError StepResult TaskCheckpoint TimeTrigger Trigger Wait WaitKind WayUp Workflow
    WorkflowEngine WorkflowResult __version__ asks_for_checkpoint check_determinism configured_engine
    configured_options continue_as crash_loop current_step in_sync now open_executor open_store parallel patched prune
    publish random
    register_type resume resume_sync run run_sync step uuid way_up workflow workflow_logger
    """,
    "flowckpt.errors": """
    ApprovalRejectedError ApprovalStaleError RequestPendingError CancelRefusedError CheckpointCorruptedError
    CheckpointNotFoundError CheckpointStorageError CommandFailedError DecodingError DiskFullError EncodingError
    EvidenceCaptureError EvidenceError EvidenceNotVerifiedError ExecutorError FanOutFailedError FencedError FinalError
    FlowckptError ForeignRecordError ImportRefusedError InputError InputMismatchError KeyFileError KeyMissingError MirrorError
    NoAsyncioError NoReplyError NotSendableError NotUndoableError ReadOnlyStoreError RunCancelledError
    RunExistsError RunFinalError RunLockedError RunMovedOnError RunNotCompletedError CrashLoopError RunSuspendedError RunUndoneError SaveConflictError
    SecretMissingError SettingError SignalRefusedError SourceUnreadableError StaleCheckpointError
    StaleStepError StepDefinitionError StepFailedError StepFilesError StepInDoubtError StepNotStartedError StepNotFoundError StepNotYieldedError StepStoppedError
    StepTimeoutError StoreAbilityError StoreSpecError SuspensionUnsavedError TargetError UnauthenticatedRecordError
    UnknownExecutorError UnsupportedFilesystemError UnsupportedSchemaError UntrustedStoreError VanishedError
    WorkerDiedError WorkflowChangedError WorkflowDefinitionError WrongKeyError
    """,
    "flowckpt.events": """
    ApprovalVoided CheckpointFailed CheckpointSaved CrashLoopDetected Event EvidenceFailed EvidenceVerified SignalSetAside RollbackCompleted
    RollbackStarted StepAdopted StepCompleted StepFailed StepOutput StepProgress StepRestored StepRetrying
    StepStarted StepStateDropped StepsRestored WorkflowCancelled WorkflowCompleted WorkflowContinued WorkflowFailed WorkflowResumed WorkflowStarted
    WorkflowSuspended WorkflowWaiting
    """,
    "flowckpt.evidence": """
    AllowedHost Capture Check CheckContext CheckTimeoutError Evidence EvidenceCaptureError EvidenceError
    EvidencePack EvidenceType EvidenceVerifier Limits MalformedClaimError Mode Moment Outcome PackOutcome
    RefusedClaimError State StepFacts UncheckableClaimError Verdict VerdictStatus VerificationReport api_response
    artifact_exists command_exit container_running db_row directory_digest file_sha256 network_reachable predicate
    process_exists register_database register_predicate
    """,
    "flowckpt.stores": """
    Ability CheckpointStore ClaimStatistics Compacted DayStatistics FailureStatistics FigureStatistics FileCheckpointStore Finding
    KeyRing Lease Loss MemoryCheckpointStore ObjectCheckpointStore PostgresCheckpointStore Repaired RunFilter RunStatistics
    RunSurvey Selection SqliteCheckpointStore StepStatistics StoreBase StoreStatistics adapt as_view check_content decode_head
    decode_result dumps encode_head find_runs open_store refused_as_encoding_error runs_of_status store_statistics
    """,
    "flowckpt.maintenance": """
    CopiedRun ExportedRun ImportLimits ImportedRun PruneReport PrunedRun Resting copy_run export_document
    export_documents export_run import_run prune_checkpoints read_export removable
    """,
    "flowckpt.otel": """
    Telemetry export_by_environment
    """,
    "flowckpt.testing": """
    CheckpointStoreContract CrashFinding CrashReport CrashesFoundError EvidenceContract FakeClock RetentionContract
    WorkflowTester explore_crashes
    """,
    "flowckpt.testing.contract": """
    CheckpointStoreContract EXACT HOSTILE_IDS NOON RUN checkpoint results same
    """,
}

SIGNATURES = {
    "flowckpt": """
workflow(name=None)
step(name)
parallel(*steps, name='parallel', concurrency=None, min_success=None, tolerate=None)
current_step()
now(name='now')
uuid(name='uuid')
random(name='random')
patched(patch_id)
continue_as(*given, **inputs)
run_sync(workflow, /, *, workflow_id=None, if_exists='fail', options=None, progress=False, **inputs)
run(workflow, /, *, workflow_id=None, if_exists='fail', options=None, progress=False, **inputs)
resume_sync(workflow, /, *, workflow_id, options=None, on_code_change=None, on_stale=None, progress=False, **inputs)
resume(workflow, /, *, workflow_id, options=None, on_code_change=None, on_stale=None, progress=False, **inputs)
open_store(spec, *, key_file=None, compression='none', trust=False)
in_sync(target)
prune(store, *, keep=None, older_than=None, statuses=…, workflow=None, is_dry_run=False, clock=None, on_run=None)
WorkflowEngine(checkpoint_store=None, *, clock=None, new_id=…, random=…, verifier=None, trigger=None, on_save_error='fail', retention=None, retry_budget=None, max_crashes=5, new_uuid=…, executors=None, listeners=())
EvidenceVerifier(base_path='.', *, mode='hash', allow_absolute=False, allow_network=(), predicates=(), checks=None, executor=None, limits=None, clock=None)
CheckpointManager(store=None, base_path=None, auto_verify=True, max_per_task=None, *, verifier=None, migrations=(), clock=None)
Evidence(evidence_type, description, expected, metadata=…, *, state='stated', is_transient=False, workers=1, attempts=1, backoff=0.0, captured=None, role='', extra=…)
EvidencePack(evidence_list, require_all=True, allow_partial=False, min_verified=0, *, extra=…)
FileCheckpointStore(path='.flowckpt', *, allow_filesystems=(), filesystem=None, clock=None, key_file=None, keys=None, compression='none', trust=False)
MemoryCheckpointStore()
MirroredStore(primary, mirror, on_error='fail', *, clock=None)
TimeTrigger(seconds=180.0)
StepCountTrigger(steps)
CompositeTrigger(triggers, mode='any')
""",
    "step(name)": """
python(function, /, *args, **kwargs)
command(argv, *, cwd=None, env=None, stdin=None, max_output=1000000)
map(function, items, *, key=None, concurrency=None, min_success=None, tolerate=None, **constants)
workflow(child, /, *args, **inputs)
sleep(time=None, *, until=None)
wait(signal, *, type=…, timeout=None, default=…, ask=None)
approval(name=None, *, of=None, timeout=None, on_rejection='fail', ask=None)
checkpoint(id=None)
evidence(*claims, require_all=True, min_verified=None)
retry(attempts, backoff=0.0, max_delay=None, jitter=0.0, on=…, deadline=None, factor=2.0)
timeout(seconds)
rollback(function)
at_most_once()
ephemeral()
on(executor, *, resources=None)
version(tag)
secret()
adopt(function)
on_rerun(function)
""",
    "WorkflowEngine": """
execute(workflow, /, *, workflow_id=None, if_exists='fail', options=None, **inputs)
resume(workflow, /, *, workflow_id, options=None, **inputs)
run(workflow, /, *, workflow_id=None, if_exists='fail', options=None, **inputs)
resume_run(workflow, /, *, workflow_id, options=None, **inputs)
run_sync(workflow, /, *, workflow_id=None, if_exists='fail', options=None, **inputs)
resume_sync(workflow, /, *, workflow_id, options=None, **inputs)
plan(workflow, /, *, workflow_id, options=None, **inputs)
""",
    "CheckpointStore": """
save(workflow_id, data)
load(workflow_id, checkpoint_id)
load_latest(workflow_id)
clear(workflow_id)
list_checkpoints(workflow_id)
""",
    "CheckpointManager": """
begin_step(task_id, checkpoint_type, snapshot, work_item_id=None, metadata=None, *, files=())
commit_step(step_id, evidence_pack, checkpoint_id=None, *, snapshot=…)
verify_checkpoint(checkpoint_id)
get_last_verified_checkpoint(task_id, checkpoint_type=None)
rollback_to_checkpoint(checkpoint_id)
get_checkpoint(checkpoint_id)
list_checkpoints(task_id, limit=100, checkpoint_type=None, *, verified=None)
delete_checkpoint(checkpoint_id)
delete_all(task_id)
restore(task_id)
restore_by_id(checkpoint_id)
""",
    "EvidenceVerifier": """
verify_evidence(evidence, *, moment='now', facts=…)
verify_evidence_pack(pack, *, moment='now', facts=…)
verify_multiple(evidence, *, moment='now', facts=…)
""",
    "flowckpt.evidence": """
artifact_exists(path, type='any')
file_sha256(path, sha256=None)
directory_digest(path, digest=None)
command_exit(exit_code=0)
db_row(database, table, where=None, values=None, *, secret_columns=())
network_reachable(host, port)
api_response(url, status=None, headers=None, json=None)
process_exists(pid=None)
container_running(name)
predicate(function, /, *args, **kwargs)
register_database(name, spec)
register_predicate(function)
""",
}

FIELDS = {
    "flowckpt.CheckpointData": """
    checkpoint_id workflow_name inputs_hash step_results saved_at sequence attempt reason status inputs fingerprint
    evidence in_flight snapshot metadata output error schema_version extra partial
    """,
    "flowckpt.StepResult": """
    name step_type success output duration_ms error path started_at attempt tries function version location
    fingerprint arguments evidence marks extra signal figures source published argument_values
    """,
    "flowckpt.WorkflowResult": """
    workflow_id workflow_name status output attempt steps duration_ms error is_saved rollback_failures failure
    undone waits last_saved save_error is_removed handled undoable figures generation
    """,
    "flowckpt.Evidence": """
    evidence_type description expected metadata state is_transient workers attempts backoff captured role extra
    """,
    "flowckpt.EvidencePack": """
    evidence_list require_all allow_partial min_verified extra
    """,
    "flowckpt.evidence.Verdict": """
    evidence status error verified_at details method duration_ms
    """,
    "flowckpt.evidence.VerificationReport": """
    outcome verdicts reason
    """,
    "flowckpt.RunOptions": """
    tags target base_path every interval steal on_stale on_code_change on_package_change reuse verify from_step force done
    not_done settled_by comment allow_network retry_budget
    max_crashes executors rolls_back stay if_attempt no_cache
    """,
}

KINDS = """
    ARTIFACT_EXISTS FILE_SHA256 DIRECTORY_DIGEST COMMAND_EXIT DB_ROW NETWORK_REACHABLE API_RESPONSE PROCESS_EXISTS
    CONTAINER_RUNNING PREDICATE
    """


@pytest.mark.parametrize("module", NAMES)
def test_the_public_names_of_a_module_are_these(module):
    imported = importlib.import_module(module)
    assert sorted(imported.__all__) == sorted(NAMES[module].split())
    assert len(set(imported.__all__)) == len(imported.__all__)
    for name in imported.__all__:
        found = getattr(imported, name)
        assert found is not None
        assert not inspect.ismodule(found), f"a module hides {module}.{name}"


OWNERS = {
    "flowckpt": flowckpt,
    "step(name)": flowckpt.step("name"),
    **{
        name: getattr(flowckpt, name)
        for name in ("WorkflowEngine", "CheckpointStore", "CheckpointManager", "EvidenceVerifier")
    },
    "flowckpt.evidence": evidence,
}


def signature_of(function: object) -> str:
    """A signature without annotations, as a reader would write it; `…` for a default that is not a plain value."""
    signature = inspect.signature(function)
    written, is_positional_only, is_keyword_only = [], False, False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if is_positional_only and parameter.kind != parameter.POSITIONAL_ONLY:
            written.append("/")
        is_positional_only = parameter.kind == parameter.POSITIONAL_ONLY
        if parameter.kind == parameter.KEYWORD_ONLY and not is_keyword_only:
            written.append("*")
        is_keyword_only = parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f"={default_of(parameter.default)}"
        written.append(f"{stars}{parameter.name}{default}")
    return f"({', '.join(written)})"


def default_of(value: object) -> str:
    if isinstance(value, enum.Enum) and value is not attrs.NOTHING:
        return repr(value.value)
    return repr(value) if value in (None, ()) or type(value) in (bool, int, float, str) else "…"


@pytest.mark.parametrize("owner", SIGNATURES)
def test_the_promised_signatures_are_these(owner):
    promised = {
        name: f"({rest}" for name, _, rest in (line.partition("(") for line in SIGNATURES[owner].split("\n") if line)
    }
    assert {name: signature_of(getattr(OWNERS[owner], name)) for name in promised} == promised


@pytest.mark.parametrize("cls", FIELDS)
def test_the_promised_fields_are_these(cls):
    package, _, name = cls.rpartition(".")
    fields = attrs.fields_dict(getattr(importlib.import_module(package), name))
    assert [field.removeprefix("_") for field in fields] == FIELDS[cls].split()


def test_the_kinds_of_evidence_are_these():
    assert [kind.name for kind in EvidenceType] == KINDS.split()


@pytest.mark.parametrize("cls", [evidence.Verdict, VerificationReport])
def test_a_verdict_and_a_report_say_whether_they_are_verified(cls):
    assert isinstance(inspect.getattr_static(cls, "verified"), property)


@pytest.mark.parametrize("cls", [evidence.Verdict, VerificationReport])
def test_a_verdict_and_a_report_are_true_when_they_are_verified(cls):
    assert "__bool__" in vars(cls)


def test_errors_carry_what_is_promised():
    assert {"expected_hash", "actual_hash"} <= set(dir(errors.InputMismatchError)) | set(
        inspect.signature(errors.InputMismatchError).parameters
    )
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.FlowckptError)


@pytest.mark.parametrize(
    "module", ["flowckpt", "flowckpt.evidence", "flowckpt.maintenance", "flowckpt.stores", "flowckpt.testing"]
)
def test_type_checkers_see_the_names_of_a_package_where_it_finds_them(module):
    imported = importlib.import_module(module)
    tree = ast.parse(Path(imported.__file__).read_text("utf-8"))
    [seen] = [each.body for each in tree.body if isinstance(each, ast.If)]
    shown = {(each.module, name.asname) for each in seen for name in each.names if each.module != module}
    assert shown == {(place, name) for place, names in imported._EXPORTS.items() for name in names.split()}
