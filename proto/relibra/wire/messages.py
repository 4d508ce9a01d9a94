"""Registrations, schedules, plans and reports to and from their messages; each `decode_*` validates its message."""

import math
from dataclasses import asdict, fields
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.planning import (
    Cause,
    Cluster,
    CostModel,
    ExecutionReport,
    Model,
    Phase,
    PlanId,
    PlanParams,
    Replicas,
    Schedule,
    StepPlan,
)
from relibra.planning.execution import MAX_SAMPLED
from relibra.planning.launch import Launch
from relibra.planning.load import narrow_counts
from relibra.planning.memory import NOT_KNOWN, ActivationMemory
from relibra.planning.plan import Level
from relibra.v1 import execution_pb2, job_pb2, plan_pb2
from relibra.wire import array
from relibra.wire.job_id import check_job_id

T = TypeVar("T")


def encode_registration(
    job_id: str,
    model: Model,
    cluster: Cluster,
    params: PlanParams,
    launch: Launch,
    known_epoch: int = 0,
) -> job_pb2.RegisterJobRequest:
    """Build the request that registers a job."""
    return job_pb2.RegisterJobRequest(
        job_id=job_id,
        model=job_pb2.Model(**asdict(model)),
        cluster=job_pb2.Cluster(**asdict(cluster)),
        params=job_pb2.PlanParams(
            seed=params.seed,
            min_tokens_per_replica=params.min_tokens_per_replica,
            cost=None if params.cost is None else job_pb2.CostModel(**asdict(params.cost)),
            homes_stay=params.homes_stay,
            memory=job_pb2.ActivationMemory(**asdict(params.memory)),
        ),
        known_epoch=known_epoch,
        token=launch.token,
        owner=launch.owner,
        process=launch.process,
    )


MAX_LAUNCH_TEXT_SIZE_BYTES = 200
MAX_COST_POINTS = 256
"""At how many token counts the time of an expert may be known."""


def decode_launch(request: job_pb2.RegisterJobRequest) -> Launch:
    """Read the launch that registers a job.

    Raises:
        InvalidInput: a text is missing or too long.
    """
    check_token(request.token)
    _check_text("process", request.process)
    if request.owner:
        _check_text("owner", request.owner)
    return Launch(token=request.token, owner=request.owner, process=request.process)


def check_token(token: str) -> str:
    """Return the token of a launch unchanged, or refuse it.

    Raises:
        InvalidInput: there is none, or it is too long.
    """
    if not token:
        raise InvalidInput.of(
            "token", expected="the token of the launch, as RELIBRA_ATTEMPT or as `attempt` of the client", got="none"
        )
    return _check_text("token", token)


def _check_text(field: str, text: str) -> str:
    if not 0 < len(text.encode()) <= MAX_LAUNCH_TEXT_SIZE_BYTES:
        raise InvalidInput.of(field, expected=f"1 to {MAX_LAUNCH_TEXT_SIZE_BYTES} bytes", got=f"{len(text)} letters")
    return text


def decode_registration(
    request: job_pb2.RegisterJobRequest,
) -> tuple[str, Model, Cluster, PlanParams]:
    """Read a registration.

    Raises:
        InvalidInput: a field is out of range, or the ranks do not divide the experts.
    """
    job_id = check_job_id(request.job_id)
    model, cluster = _read(Model, request.model), _read(Cluster, request.cluster)
    cluster.experts_per_rank(model)
    cost = request.params.cost
    for field, num_points in (("expert_tokens", len(cost.expert_tokens)), ("expert_us", len(cost.expert_us))):
        # Counted before they are copied. The cost model is part of the job's record, which every call reads.
        if num_points > MAX_COST_POINTS:
            raise InvalidInput.of(f"cost.{field}", expected=f"at most {MAX_COST_POINTS} points", got=num_points)
    params = PlanParams(
        seed=request.params.seed,
        min_tokens_per_replica=request.params.min_tokens_per_replica,
        cost=_read(CostModel, cost) if request.params.HasField("cost") else None,
        homes_stay=request.params.homes_stay,
        memory=_read_memory(request.params.memory, model),
    )
    return job_id, model, cluster, params


def _read_memory(message: job_pb2.ActivationMemory, model: Model) -> ActivationMemory:
    """Read what activations take; a message without stages is none.

    Raises:
        InvalidInput: a field is out of range, or the chunks do not have the layers of the model.
    """
    memory = _read(ActivationMemory, message) if message.num_stages else NOT_KNOWN
    memory.layers_of(0, model.num_layers)
    return memory


def _read(kind: type[T], message: Message) -> T:
    """Return the record of a message whose fields have the names of the record's."""
    return kind(**{field.name: getattr(message, field.name) for field in fields(kind)})  # type: ignore[arg-type]


def encode_schedule(sequence_ids: list[str], schedule: Schedule | None) -> plan_pb2.Schedule:
    """Build the message of a schedule, or of the sequences of a step whose micro-batches nobody knows yet."""
    if schedule is None:
        return plan_pb2.Schedule(sequence_ids=sequence_ids)
    return plan_pb2.Schedule(
        sequence_ids=sequence_ids,
        micro_batch=array.encode(schedule.micro_batch_S),
        source_rank=array.encode(schedule.source_rank_S),
        ep_group=array.encode(schedule.ep_group_S),
        is_forward_only=schedule.is_forward_only,
    )


def decode_sequences(message: plan_pb2.Schedule) -> list[str]:
    """Read the sequences of a step.

    Raises:
        InvalidInput: there are none.
    """
    sequence_ids = list(message.sequence_ids)
    if not sequence_ids:
        raise InvalidInput.of("schedule", expected="at least one sequence", got="none")
    return sequence_ids


def has_micro_batches(message: plan_pb2.Schedule) -> bool:
    """Return whether a schedule says which sequences share a micro-batch."""
    return any(message.HasField(field) for field in ("micro_batch", "source_rank", "ep_group"))


def decode_schedule(message: plan_pb2.Schedule, cluster: Cluster) -> tuple[list[str], Schedule]:
    """Read a schedule with micro-batches for `cluster`.

    Raises:
        InvalidInput: an array is malformed, or a rank or group does not exist.
    """
    sequence_ids = decode_sequences(message)
    shape = (len(sequence_ids),)
    schedule = Schedule(
        micro_batch_S=array.decode(message.micro_batch, "schedule.micro_batch", kinds="iu", shape=shape),
        source_rank_S=array.decode(message.source_rank, "schedule.source_rank", kinds="iu", shape=shape),
        ep_group_S=array.decode(message.ep_group, "schedule.ep_group", kinds="iu", shape=shape),
        is_forward_only=message.is_forward_only,
    )
    schedule.check(cluster)
    return sequence_ids, schedule


_LEVELS = {
    Level.MICRO_BATCHES: plan_pb2.LEVEL_MICRO_BATCHES,
    Level.STEP: plan_pb2.LEVEL_STEP,
    Level.HISTORY: plan_pb2.LEVEL_HISTORY,
}


def encode_level(level: Level) -> plan_pb2.Level:
    """Return the wire number of a level."""
    return _LEVELS[level]


def decode_level(number: int) -> Level:
    """Read a level.

    Raises:
        InvalidInput: this version knows no level of that number.
    """
    level = next((level for level, of_level in _LEVELS.items() if of_level == number), None)
    if level is None:
        raise InvalidInput.of("plan.level", expected="micro-batches, step or history (0 to 2)", got=number)
    return level


def encode_plan_id(plan_id: PlanId) -> plan_pb2.PlanId:
    """Build the message of a plan id."""
    return plan_pb2.PlanId(epoch=plan_id.epoch, version=plan_id.version)


def decode_plan_id(message: plan_pb2.PlanId) -> PlanId:
    """Read a plan id."""
    return PlanId(epoch=message.epoch, version=message.version)


def decode_step_plan(message: plan_pb2.StepPlan, model: Model) -> StepPlan:
    """Read the plan of a step. It must pass `check_step_plan` before it is applied.

    Raises:
        InvalidInput: an array is malformed, does not have the model's shape, or does not fit the other arrays.
    """
    shape = (model.num_layers, model.num_experts)
    home_LE = array.decode(message.home_rank, "plan.home_rank", kinds="iu", shape=shape)
    count_ML = array.decode(message.replica_count, "plan.replica_count", kinds="iu", shape=(None, model.num_layers))
    expert_Y = array.decode(message.replica_expert, "plan.replica_expert", kinds="iu", shape=(None,))
    rank_Y = array.decode(message.replica_rank, "plan.replica_rank", kinds="iu", shape=expert_Y.shape)
    return StepPlan(
        id=decode_plan_id(message.id),
        step=message.step,
        digest=message.digest,
        home_rank_LE=home_LE.astype(np.int32),
        replicas=Replicas(count_ML=count_ML, expert_Y=expert_Y, rank_Y=rank_Y),
        num_micro_batches=message.num_micro_batches,
        reason=message.reason,
        level=decode_level(message.level),
        expected_gain=message.expected_gain,
        excess=message.excess,
    )


_MAX_PROCESSES = 1 << 16
"""Far more processes than a report can speak for: it would falsify the GPU-hours of its job for good."""
_PHASES = {Phase.RECOMPUTE: execution_pb2.PHASE_RECOMPUTE, Phase.UPDATE: execution_pb2.PHASE_UPDATE}
_CAUSES = {cause: getattr(execution_pb2, f"CAUSE_{cause.name}") for cause in Cause}
_CAUSE_OF_NUMBER = {number: cause for cause, number in _CAUSES.items()}


# Fields of a report that are numbers or text travel under their own names.
_PLAIN_FIELDS = tuple(field.name for field in fields(ExecutionReport) if field.type in (int, float, str))
_TIMES = tuple(name for name in _PLAIN_FIELDS if name.endswith("_s"))


def encode_execution_report(
    job_id: str, report: ExecutionReport, epoch: int = 0
) -> execution_pb2.ReportExecutionRequest:
    """Build the message of an execution report."""
    plain: dict[str, Any] = {name: getattr(report, name) for name in _PLAIN_FIELDS}
    expert_load = report.expert_load_NLE
    return execution_pb2.ReportExecutionRequest(
        **plain,
        job_id=job_id,
        epoch=epoch,
        phase=_PHASES[report.phase],
        applied=encode_plan_id(report.applied) if report.applied else None,
        realised_load=array.encode(report.realised_load_ML),
        expert_load=array.deflate(expert_load) if expert_load.size else None,  # most of it is 0
        causes=[_CAUSES[cause] for cause in report.causes],
    )


def decode_execution_report(
    request: execution_pb2.ReportExecutionRequest, model: Model, cluster: Cluster
) -> ExecutionReport:
    """Read an execution report. A cause that this version does not know is read as `UNSPECIFIED`.

    Raises:
        InvalidInput: a field is malformed, a rank, group or phase does not exist, a load or time is negative, a time is
            not finite, or a report that names a plan also names causes of a fallback.
    """
    phase = next((phase for phase, number in _PHASES.items() if number == request.phase), None)
    if phase is None:
        raise InvalidInput.of("phase", expected="recompute or update", got=request.phase)
    for field, value, bound in (
        ("ep_rank", request.ep_rank, cluster.num_ranks),
        ("ep_group", request.ep_group, cluster.num_ep_groups),
    ):
        if value >= bound:
            raise InvalidInput.of(field, expected=f"0 to {bound - 1}", got=value)
    for field in _TIMES:
        if not 0 <= getattr(request, field) < math.inf:
            raise InvalidInput.of(field, expected="seconds, at least 0", got=getattr(request, field))
    if not 1 <= request.num_processes <= _MAX_PROCESSES:
        raise InvalidInput.of("num_processes", expected=f"1 to {_MAX_PROCESSES}", got=request.num_processes)
    load_ML = array.decode(request.realised_load, "realised_load", kinds="i", shape=(None, model.num_layers))
    if load_ML.min(initial=0) < 0:
        raise InvalidInput.of("realised_load", expected="token copies, at least 0", got=load_ML.min())
    num_sampled = next(iter(request.expert_load.shape), 0)
    if num_sampled > MAX_SAMPLED:  # checked before decoding, because a deflated array grows
        raise InvalidInput.of("expert_load", expected=f"at most {MAX_SAMPLED} micro-batches", got=num_sampled)
    shape = (num_sampled, model.num_layers, model.num_experts)
    expert_load_NLE: NDArray[np.unsignedinteger] = np.zeros(shape, dtype=np.uint8)
    if request.HasField("expert_load"):
        expert_load_NLE = array.decode(request.expert_load, "expert_load", kinds="u", shape=shape)
    if request.causes and request.HasField("applied"):
        raise InvalidInput.of("causes", expected="none where a plan was applied", got=list(request.causes))
    plain: dict[str, Any] = {name: getattr(request, name) for name in _PLAIN_FIELDS}
    return ExecutionReport(
        **plain,
        phase=phase,
        applied=decode_plan_id(request.applied) if request.HasField("applied") else None,
        realised_load_ML=load_ML.astype(np.int64),
        expert_load_NLE=narrow_counts(expert_load_NLE),
        causes=tuple(dict.fromkeys(_CAUSE_OF_NUMBER.get(number, Cause.UNSPECIFIED) for number in request.causes)),
    )
