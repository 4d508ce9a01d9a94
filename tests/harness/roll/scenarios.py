"""Scenarios on two ranks: ROLL's workers alone, and with the plug-in on the same batches."""

import itertools
import socket
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from megatron.core.transformer.moe.router_replay import RouterReplay
from roll.distributed.strategy import megatron_strategy
from roll.pipeline.agentic import agentic_actor_pg_worker
from roll.pipeline.rlvr import actor_pg_worker, actor_worker

from harness import tiny_qwen3_moe
from harness.plugin_contract import (
    AWAY,
    Contract,
    Plugin,
    Rank,
    check_equal,
    check_planned_beside,
    named,
    noted_outcomes,
    refused,
    set_environment,
)
from harness.roll import workers
from harness.trained import Trained
from relibra.errors import Unsupported
from relibra.integrations import roll as plugin
from relibra.plugins.roll import rollout
from relibra.plugins.roll.batch import rank_batch
from relibra.routing import read_model_config
from relibra.routing.sequence_name import name_sequence
from relibra.routing.sequence_routing import sequence_routing

NUM_UPDATES = 3
OWN = megatron_strategy.MegatronTrainStrategy, megatron_strategy.MegatronInferStrategy
"""ROLL's own strategies."""
_numbers = itertools.count()


def prepare(folder: Path) -> None:
    """Write what all scenarios share, before the ranks start."""
    tiny_qwen3_moe.save_with_tokenizer(folder / "model")


def build(
    at: Rank,
    *,
    balanced: bool,
    cluster: str = "actor_train",
    strategy: str = "megatron_train",
    mode: str = "R3",
    variant: str | None = None,
) -> Any:
    """Build a worker; a process of ROLL has one with the plug-in or one without."""
    megatron_strategy.MegatronTrainStrategy, megatron_strategy.MegatronInferStrategy = OWN
    # Each model has a process of its own in ROLL, which replays the routing of the first routers of a process.
    RouterReplay.clear_global_router_replay_instances()
    worker = plugin.RLVRWorker if balanced else actor_worker.ActorWorker
    built = workers.build(
        worker, at.folder / "model", at.number, cluster=cluster, strategy=strategy, mode=mode, variant=variant
    )
    built.at, built.passes = at, getattr(built.strategy, "passes", None)
    return built


def exported(worker: Any) -> Any:
    """Return the weights of the whole model."""
    return workers.exported(worker, worker.at.folder / f"exported {next(_numbers)}")


def train(at: Rank, worker: Any, *, has_routes: bool = True) -> Trained:
    """Run steps: log-probabilities, an update, and an export, with all of ROLL's offloads in between."""
    trained = Trained()
    for step in range(NUM_UPDATES):
        trained.outputs.append(workers.log_probs(worker, workers.batch(at.number, step, has_routes=has_routes)))
        trained.numbers.append(workers.update(worker, workers.batch(at.number, step, has_routes=has_routes)))
        trained.exports.append(exported(worker))
    return trained


def _close(worker: Any) -> None:
    worker.strategy.load_states()
    worker.passes.close()


CONTRACT = Contract(
    Plugin(
        build=build,
        train=train,
        exported=exported,
        stores_by_expert=lambda worker: worker.passes.mover is not None,
        num_passes=2 * NUM_UPDATES,
        close=_close,
    )
)


def S5_a_planner_plans_every_pass_from_the_routing_that_is_replayed(at: Rank) -> None:
    """Batches are padded on the right, and passes over log-probabilities have other micro-batches than updates."""
    CONTRACT.check_planned(at, "roll-replayed", 2 * NUM_UPDATES)


def the_rollout_reports_each_response_as_training_reads_it(at: Rank) -> None:
    """ROLL's own code makes batches of responses; an aborted one goes on later, and is not reported."""
    reports = mock.Mock()
    with mock.patch.object(rollout, "stream", return_value=reports):
        batch = workers.rollout(plugin.InferWorker)
    layers = read_model_config(str(at.folder / "model"))
    trained = rank_batch([batch], layers)
    assert len(trained.names) == workers.NUM_SAMPLES
    told = [call.args for call in reports.report.call_args_list]
    assert [name_sequence(tokens) for tokens, _ in told] == trained.names
    for (tokens, rows), routing in zip(told, trained.routings, strict=True):
        streamed = sequence_routing(rows, layers, num_tokens=len(tokens))
        np.testing.assert_array_equal(streamed.routed_TLK, routing.routed_TLK)


def S5_a_job_that_replays_nothing_is_planned_from_history(at: Rank) -> None:
    """So is one without replay."""
    CONTRACT.check_planned_from_history(at, "roll-plain", of_build={"mode": "disable"}, has_routes=False)


def S5_a_reference_is_a_job_of_its_own(at: Rank) -> None:
    """Its log-probabilities are those of ROLL alone, and its passes have plans from the third on."""
    of_reference = {"cluster": "reference", "strategy": "megatron_infer", "mode": "disable"}

    def run(worker: Any) -> Trained:
        trained = Trained()
        for step in range(NUM_UPDATES):
            trained.outputs.append(workers.log_probs(worker, workers.batch(at.number, step, has_routes=False)))
        trained.exports.append(exported(worker))
        return trained

    alone = run(build(at, balanced=False, **of_reference))
    set_environment(at.planner, "roll")
    with noted_outcomes(awaits_history=True, job="roll-reference") as outcomes:
        worker = build(at, balanced=True, **of_reference)
        check_equal(run(worker), alone)
    check_planned_beside(outcomes, NUM_UPDATES)
    _close(worker)


def no_expert_moves_on_several_machines(at: Rank) -> None:
    """All that reads weights by place is ROLL's own there, too."""
    set_environment(AWAY, "spread")
    with mock.patch.object(socket, "gethostname", return_value=f"node-{at.number}"):
        worker = build(at, balanced=True)
    assert worker.passes.planned.cluster.num_nodes == workers.RANKS
    assert worker.passes.agent.homes_stay
    _close(worker)


def S9_a_strategy_that_is_not_megatrons_is_refused(at: Rank) -> None:
    """It is named."""
    with refused(Unsupported, "cluster actor_train has fsdp2_train"):
        build(at, balanced=True, strategy="fsdp2_train")


def S9_a_variant_of_the_loss_that_a_worker_has_not_is_refused(at: Rank) -> None:
    """It names the workers that have it, with ROLL's own losses."""
    with refused(Unsupported, "pg_variant=topr for cluster actor_train, got RLVRWorker"):
        build(at, balanced=True, variant="topr")
    assert plugin.RLVRPGWorker.loss_func is actor_pg_worker.ActorPGWorker.loss_func
    assert plugin.AgenticPGWorker.loss_func is agentic_actor_pg_worker.ActorWorker.loss_func


SCENARIOS = named(
    CONTRACT.the_framework_alone_trains,
    S5_a_planner_plans_every_pass_from_the_routing_that_is_replayed,
    the_rollout_reports_each_response_as_training_reads_it,
    S5_a_job_that_replays_nothing_is_planned_from_history,
    S5_a_reference_is_a_job_of_its_own,
    no_expert_moves_on_several_machines,
    CONTRACT.L1_a_job_whose_planner_is_away_trains_as_without_the_plug_in,
    S9_a_strategy_that_is_not_megatrons_is_refused,
    S9_a_variant_of_the_loss_that_a_worker_has_not_is_refused,
)
