"""Scenarios on two ranks: AReaL's Megatron engine alone, and with the plug-in on the same batches."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from areal.api.cli_args import InferenceEngineConfig
from areal.api.io_struct import SaveLoadMeta
from areal.engine import megatron_engine
from areal.engine.megatron_engine import MegatronPPOActor

from harness import tiny_qwen3_moe
from harness.areal import engines
from harness.plugin_contract import (
    AWAY,
    MODEL,
    Contract,
    Plugin,
    Rank,
    check_equal,
    check_moved,
    check_nothing_moves,
    check_planned,
    check_planned_beside,
    moving,
    named,
    noted_outcomes,
    refused,
    set_environment,
)
from harness.trained import NUM_EXPORTED, ROUNDING, Trained, differing, relative, unequal
from relibra.errors import Unsupported
from relibra.integrations.areal import balanced as balanced_trainer
from relibra.planning.plan import Level
from relibra.plugins.areal.engine import BalancedPPOActor, BalancedReference, ReportedPPOActor
from relibra.plugins.areal.recovery import StateByExpert
from relibra.plugins.areal.rollout import ReportingSGLangEngine
from relibra.plugins.areal.trainer import MODEL_VARIABLE
from relibra.wire.client import PlannerClient

NUM_UPDATES = 3


def prepare(folder: Path) -> None:
    """Write what all scenarios share, before the ranks start."""
    tiny_qwen3_moe.save_with_tokenizer(folder / "model")


def build(at: Rank, *, balanced: bool, bridge: str = "megatron-bridge") -> Any:
    """Build an engine."""
    return engines.build(BalancedPPOActor if balanced else MegatronPPOActor, at.folder / "model", bridge)


def train(at: Rank, engine: Any, rest: Callable[[], Any] = lambda: None) -> Trained:
    """Run passes over old log-probabilities and updates, and send weights, with a rest before each."""
    trained = Trained()
    for step in range(NUM_UPDATES):
        data = engines.batch(at.number, step)
        rest()
        trained.outputs.append(engines.infer(engine, data))
        rest()
        trained.numbers.append(engines.update(engine, data))
        rest()
        trained.exports.append(engines.sent(engine))
    return trained


CONTRACT = Contract(
    Plugin(
        build=build,
        train=train,
        exported=engines.sent,
        stores_by_expert=lambda engine: isinstance(engine.checkpointer.optimizer, StateByExpert),
        num_passes=2 * NUM_UPDATES,
    )
)


def _written(engine: Any, folder: Path) -> dict[str, torch.Tensor]:
    """Save a checkpoint of Hugging Face; return what is in its files."""
    engine.save(SaveLoadMeta(path=str(folder), weight_format="hf", with_optim=False))
    return tiny_qwen3_moe.written(folder)


def S5_a_checkpoint_of_hugging_face_has_every_expert_under_its_name_after_reorders(at: Rank) -> None:
    """What the engine writes is what AReaL alone exports."""
    assert differing(_written(CONTRACT.moved, at.folder / "huggingface"), CONTRACT.alone.exports[-1]) == []


def S5_mbridge_sends_saves_loads_and_recovers_every_expert_under_its_name_after_reorders(at: Rank) -> None:
    """mbridge is AReaL's default; AReaL's own tables name the weights that it sends, and its own code writes files."""
    alone = train(at, build(at, balanced=False, bridge="mbridge"))
    set_environment(AWAY, "mbridge")
    with moving(at, 2 * NUM_UPDATES + 4) as outcomes:
        engine = build(at, balanced=True, bridge="mbridge")
        assert type(engine.bridge).__module__ == "mbridge.models.qwen3moe"
        of_file = tiny_qwen3_moe.written(at.folder / "model")
        engines.infer(engine, engines.batch(at.number, 0))  # moves experts and trains nothing
        assert unequal(engines.sent(engine), of_file) == []
        check_nothing_moves(lambda: engines.sent(engine))
        trained = train(at, engine)
        before = trained.exports[-1]
        assert len(before) == NUM_EXPORTED
        assert differing(_written(engine, at.folder / "of mbridge"), before) == []
        recovery = SaveLoadMeta(path=str(at.folder / "recovery"), weight_format="dcp", with_optim=True)
        (at.folder / "recovery").mkdir(exist_ok=True)
        engine.save(recovery)
        numbers, sent = [], []
        for _ in range(2):
            numbers.append(engines.update(engine, engines.batch(at.number, 50)))
            sent.append(engines.sent(engine))
            engine.load(recovery)
        recovered = engines.sent(engine)
        engines.update(engine, engines.batch(at.number, 51))
        engine.load(SaveLoadMeta(path=str(at.folder / "of mbridge"), weight_format="hf", with_optim=False))
    check_moved(outcomes)
    check_equal(trained, alone)
    assert differing(recovered, before) == []
    assert differing(sent[1], sent[0]) == []
    assert relative(numbers[1], numbers[0]) < ROUNDING
    assert differing(engines.sent(engine), before) == []


def S5_training_is_that_of_areal_alone_when_areal_offloads_everything(at: Rank) -> None:
    """With `enable_offload`, weights and optimizer state are away before each call, which brings them back."""
    set_environment(AWAY, "offloaded")
    memory = engines.PausedMemory()
    with (
        moving(at, 2 * NUM_UPDATES) as outcomes,
        mock.patch.multiple(megatron_engine, torch_memory_saver=memory, is_tms_enabled=lambda: True),
    ):
        memory.engine = engine = build(at, balanced=True)
        trained = train(at, engine, lambda: engine.is_offload or engine.offload())
        engine.onload()
    check_moved(outcomes, 2 * NUM_UPDATES)
    check_equal(trained, CONTRACT.alone)
    engine.passes.close()


def S5_a_job_that_replays_nothing_is_planned_from_history(at: Rank) -> None:
    """AReaL replays nothing."""
    CONTRACT.check_planned_from_history(at, "areal-history")


def S5_a_planner_plans_every_pass_from_what_the_rollout_reported(at: Rank) -> None:
    """AReaL's own client has reported all responses, and a pass over one that it did not is planned from history."""
    alone = train(at, build(at, balanced=False))
    set_environment(at.planner, "areal-reported")
    os.environ |= {"RELIBRA_ATTEMPT": "this launch", MODEL_VARIABLE: str(at.folder / "model")}
    with noted_outcomes(job="areal-reported") as outcomes:
        engine = engines.build(ReportedPPOActor, at.folder / "model")
        for step in range(NUM_UPDATES):
            engines.generate(ReportingSGLangEngine, engines.batch(at.number, step))
        trained = train(at, engine)
        engines.infer(engine, engines.batch(at.number, NUM_UPDATES))
    del os.environ["RELIBRA_ATTEMPT"], os.environ[MODEL_VARIABLE]
    check_equal(trained, alone)
    check_planned(outcomes[:-1], 2 * NUM_UPDATES)
    with PlannerClient(at.planner, attempt="this launch") as planner:
        plans = [planner.fetch_plan("areal-reported", outcome.step, MODEL) for outcome in outcomes]
    of_known = [plan is not None and plan.level is Level.MICRO_BATCHES for plan in plans]
    assert of_known == [True] * 2 * NUM_UPDATES + [False]
    engine.passes.close()


def S5_the_reference_is_a_job_of_its_own_that_is_planned_from_history(at: Rank) -> None:
    """A real planner plans its passes from those before; log-probabilities are those of AReaL's own engine."""
    set_environment(at.planner, "areal")
    alone, balanced = (
        engines.build(engine, at.folder / "model", "mbridge", "ref") for engine in (MegatronPPOActor, BalancedReference)
    )
    with noted_outcomes(awaits_history=True, job="areal-reference") as outcomes:
        for step in range(NUM_UPDATES):
            want, got = (engines.infer(engine, engines.batch(at.number, step)) for engine in (alone, balanced))
            assert float((got - want).abs().max()) < ROUNDING
    check_planned_beside(outcomes, NUM_UPDATES)
    balanced.passes.close()


def the_trainer_creates_the_engines_of_the_plug_in(at: Rank) -> None:
    """It does so for actor and reference, here or in workers; a teacher gets AReaL's."""
    from areal.trainer.rl_trainer import PPOTrainer

    set_environment(AWAY, "")
    folder, roles = at.folder / "model", ("actor", "ref", "ref")
    actor, reference, teacher = (engines.configuration(folder, role=role) for role in roles)
    actor.scheduling_spec[0].env_vars["RELIBRA_PLANNER"] = "planner:7420"
    trainer = object.__new__(balanced_trainer(PPOTrainer))  # a whole trainer starts a rollout
    of_models = {"actor": actor, "ref": reference, "critic": None, "teacher": teacher}
    rollout = InferenceEngineConfig(backend="sglang:d1")
    trainer.config = SimpleNamespace(**of_models, rollout=rollout, experiment_name="Tiny", trial_name="one")
    trainer.scheduler = None

    def created() -> list[Any]:
        allocation = SimpleNamespace(backend="megatron", parallel=None)
        return [trainer._create_train_engine(config, allocation) for config in (actor, reference, teacher)]

    controlled = [controller.train_engine for controller in created()]
    with (
        mock.patch.dict(os.environ, AREAL_SPMD_MODE="1"),
        mock.patch.object(MegatronPPOActor, "create_process_group"),
    ):
        in_process = [type(engine) for engine in created()]
    assert controlled == in_process == [BalancedPPOActor, BalancedReference, MegatronPPOActor]
    for config in (actor, reference):
        variables = config.scheduling_spec[0].env_vars
        assert (variables["RELIBRA_PLANNER"], variables["RELIBRA_JOB"]) == ("planner:7420", "Tiny-one")


def the_trainer_creates_the_client_of_the_plug_in_where_the_rollout_returns_routes(at: Rank) -> None:
    """Its workers know the job; an evaluation has AReaL's client."""
    from areal.trainer import rl_trainer

    set_environment("planner:7420", "")
    clients = list[Any]()

    class Trainer(rl_trainer.PPOTrainer):  # type: ignore[misc]
        def _init_rollout(self, rollout_config: Any, is_eval: bool = False) -> None:
            clients.append(rl_trainer.RemoteSGLangEngine)

    own, trainer = rl_trainer.RemoteSGLangEngine, object.__new__(balanced_trainer(Trainer))
    for returns_routes, planner in ((False, "planner:7420"), (True, "embedded"), (True, "planner:7420")):
        rollout = InferenceEngineConfig(backend="sglang:d1", return_routed_experts=returns_routes)
        actor, trainer.scheduler = engines.configuration(at.folder / "model"), None
        actor.scheduling_spec[0].env_vars["RELIBRA_PLANNER"] = planner
        of_models = {"actor": actor, "ref": None, "critic": None, "teacher": None}
        trainer.config = SimpleNamespace(**of_models, rollout=rollout, experiment_name="tiny", trial_name="one")
        created = trainer._create_train_engine(actor, SimpleNamespace(backend="megatron", parallel=None))
        for is_eval in (False, True):
            trainer._init_rollout(rollout, is_eval)
    assert clients == [own] * 4 + [ReportingSGLangEngine, own]
    assert created.train_engine is ReportedPPOActor
    variables, of_actor = rollout.scheduling_spec[0].env_vars, actor.scheduling_spec[0].env_vars
    assert variables[MODEL_VARIABLE] == str(at.folder / "model")
    assert variables["RELIBRA_JOB"] == "tiny-one"
    assert variables["RELIBRA_ATTEMPT"] == of_actor["RELIBRA_ATTEMPT"] != ""
    del os.environ["RELIBRA_ATTEMPT"], os.environ[MODEL_VARIABLE]


def S9_weights_that_would_leave_through_awex_are_refused_at_start(at: Rank) -> None:
    """It reads experts by place, in AReaL's second controller and beside a rollout on the same GPUs."""
    from areal.trainer.rl_trainer import PPOTrainer

    trainer = object.__new__(balanced_trainer(PPOTrainer))
    actor = engines.configuration(at.folder / "model")
    actor._version, trainer.config = "v2", SimpleNamespace(actor=actor)
    with refused(Unsupported, "expected actor._version=v1 and no colocation through awex"):
        trainer._create_train_engine(actor, SimpleNamespace(backend="megatron", parallel=None))
    with refused(Unsupported, "leave through awex"):
        CONTRACT.moved.connect_engine(None, SimpleNamespace(type="awex"))


SCENARIOS = named(
    CONTRACT.the_framework_alone_trains,
    CONTRACT.S5_all_is_that_of_the_framework_alone_when_experts_move_before_every_pass,
    CONTRACT.no_expert_moves_for_an_export_and_permuted_and_stale_weights_are_seen,
    S5_a_checkpoint_of_hugging_face_has_every_expert_under_its_name_after_reorders,
    S5_mbridge_sends_saves_loads_and_recovers_every_expert_under_its_name_after_reorders,
    S5_training_is_that_of_areal_alone_when_areal_offloads_everything,
    S5_a_job_that_replays_nothing_is_planned_from_history,
    CONTRACT.S5_a_job_that_observes_trains_as_the_framework_alone_and_reports_its_loads,
    CONTRACT.checkpoints_are_the_frameworks_own_unless_experts_may_move,
    CONTRACT.L1_a_job_whose_planner_is_away_trains_as_without_the_plug_in,
    S5_a_planner_plans_every_pass_from_what_the_rollout_reported,
    S5_the_reference_is_a_job_of_its_own_that_is_planned_from_history,
    the_trainer_creates_the_engines_of_the_plug_in,
    the_trainer_creates_the_client_of_the_plug_in_where_the_rollout_returns_routes,
    S9_weights_that_would_leave_through_awex_are_refused_at_start,
)
