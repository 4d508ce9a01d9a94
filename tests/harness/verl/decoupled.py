"""Local steps of verl's decoupled trainers, which compute old log-probabilities with the weights of the first one."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

from omegaconf import OmegaConf
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync

from harness.plugin_contract import AWAY, Rank, check_equal, check_moved, moving, set_environment
from harness.trained import Trained
from harness.verl import engines, training

NUM_LOCAL_STEPS = 3


def S5_old_log_probs_are_those_of_verl_alone_when_experts_move_between_local_steps(at: Rank) -> None:
    """Weights that verl put aside return to where their experts are, also when the planner is away after a reorder."""
    for offload in (False, True):
        alone = _train(at, training.build(at, balanced=False, offload=offload))
        for num_planned in (1 + NUM_LOCAL_STEPS, 2):
            set_environment(AWAY, f"decoupled-{offload}-{num_planned}")
            with moving(at, num_planned) as outcomes:
                trained = _train(at, training.build(at, balanced=True, offload=offload))
            check_moved(outcomes[:num_planned], num_planned)
            check_equal(trained, alone)


def _train(at: Rank, engine: Any) -> Trained:
    """Train with verl's own worker and its own trainer, as far as it asks the worker for old log-probabilities."""
    trained, config = Trained(), SimpleNamespace(actor=SimpleNamespace(strategy="megatron"))
    worker, trainer = (object.__new__(each) for each in (DetachActorWorker, PPOTrainerSeparateAsync))
    vars(worker).update(config=config, actor=SimpleNamespace(engine=engine), _strategy_handlers=None)
    vars(trainer).update(config=OmegaConf.create({"algorithm": {}}), actor_rollout_wg=worker)

    def infer(_: PPOTrainer, batch: Any, metrics: dict[str, Any]) -> None:
        training.infer(trained, engine, batch)

    with mock.patch.object(PPOTrainer, "_compute_old_log_prob", infer):
        for trainer.local_trigger_step in range(NUM_LOCAL_STEPS):
            trainer._compute_old_log_prob(engines.batch(at.number, 0), {})
            trained.numbers.append(engines.update(engine, engines.batch(at.number, trainer.local_trigger_step)))
            trained.exports.append(engines.exported(engine))
    return trained
