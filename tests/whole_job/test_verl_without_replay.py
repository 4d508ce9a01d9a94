"""A whole job of verl without replay: planned from history, experts move, the planner dies, training resumes."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.services import Service, eventually
from harness.trained import differing
from harness.whole_job.job import Outcome, check_alike
from harness.whole_job.verl_job import WITHOUT_REPLAY, Job
from relibra.store.embedded import EmbeddedRedis

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]  # both jobs start a dozen processes, on two cores

STEPS_OF_DRIFTER, SAVED, PLANNED = 4, 2, 3
"""The steps of the job without replay, the step after which it saves, and those that its planner survives."""
WITHOUT_RECORDS = (WITHOUT_REPLAY, "actor_rollout_ref.rollout.enable_rollout_routing_replay=False")


@pytest.fixture(scope="module")
def drifter(
    launch: Callable[..., Outcome],
    prepared: Path,
    redis_server: EmbeddedRedis,
    tmp_path_factory: pytest.TempPathFactory,
) -> Outcome:
    """A job without replay on two machines, which saves a checkpoint, and whose planner is killed."""
    mortal = Service("planner", redis_server.url, tmp_path_factory.mktemp("mortal"))

    def kill() -> None:
        eventually(lambda: len(Outcome(folder=prepared / "drifter", code=None).metrics) >= PLANNED, within_s=600)
        mortal.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    outcome = launch(
        Job,
        "drifter",
        planner=mortal.address,
        num_steps=STEPS_OF_DRIFTER,
        own_machines=True,
        settings=(*WITHOUT_RECORDS, f"trainer.save_freq={SAVED}"),
    )
    killer.join()
    return outcome


@pytest.fixture(scope="module")
def resumed(launch: Callable[..., Outcome], drifter: Outcome) -> Outcome:
    """verl alone, which goes on from that checkpoint on the same samples."""
    return launch(
        Job,
        "resumed",
        replays=drifter,
        num_steps=STEPS_OF_DRIFTER,
        settings=(
            *WITHOUT_RECORDS,
            "actor_rollout_ref.actor.megatron.dist_ckpt_optim_fully_reshardable=True",
            "trainer.resume_mode=resume_path",
            f"trainer.resume_from_path={drifter.folder}/global_step_{SAVED}",
        ),
    )


def test_passes_are_planned_from_those_before_and_experts_move(drifter: Outcome) -> None:
    assert drifter.code == 0, drifter.log[-5000:]
    assert len(drifter.outcomes) == 2
    for outcomes in drifter.outcomes:
        assert len(outcomes) == 2 * STEPS_OF_DRIFTER, "a pass over old log-probabilities and an update in every step"
        planned = outcomes[2 : 2 * PLANNED]
        assert all(outcome["is_applied"] or outcome["is_kept"] for outcome in planned), outcomes
        assert any(outcome["num_moved"] for outcome in planned), outcomes


def test_L1_the_job_trains_on_when_its_planner_dies(drifter: Outcome) -> None:
    assert len(drifter.metrics) == STEPS_OF_DRIFTER
    for outcomes in drifter.outcomes:
        assert all(outcome["is_kept"] for outcome in outcomes[2 * PLANNED + 1 :]), outcomes
    assert "it keeps placement and replicas of plan" in drifter.log


def test_the_engine_computes_what_the_trainer_does_wherever_experts_are(drifter: Outcome) -> None:
    for step in drifter.metrics:
        assert step["training/rollout_probs_diff_max"] < 1e-5


def test_S5_verl_alone_resumes_from_the_checkpoint_with_the_same_results(drifter: Outcome, resumed: Outcome) -> None:
    assert resumed.code == 0, resumed.log[-5000:]
    assert len(resumed.metrics) == STEPS_OF_DRIFTER - SAVED
    names = ("actor/pg_loss", "actor/grad_norm", "critic/score/mean")
    for planned, own in zip(drifter.metrics[SAVED:], resumed.metrics, strict=True):
        check_alike(planned, own, names)
    received = drifter.received()[SAVED:]
    assert len(received) == 1 + STEPS_OF_DRIFTER - SAVED
    for planned, own in zip(received, resumed.received(), strict=True):
        assert not differing(planned, own)
