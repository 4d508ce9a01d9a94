"""The whole trainer is killed again and again at random points, and its launcher or its scheduler starts it again.

Planner, Redis, torchrun, megatron-core and its checkpoints are real; ranks train on the CPU.
"""

import os
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.restarts.comparison import differences, restart_times_s, unplanned
from harness.restarts.kills import CHECKPOINT, Kill, draw_kills
from harness.restarts.launchers import Zygote, started, train_to_the_end, wait_until_over
from harness.restarts.run import NUM_MICRO_BATCHES, Launch, Run
from harness.robustness.world import World
from harness.services import eventually
from relibra.planning import Cluster

pytestmark = [pytest.mark.robustness, pytest.mark.integration, pytest.mark.timeout(3600)]

NUM_KILLS = int(os.environ.get("RELIBRA_TRAINER_KILLS", "3"))
NUM_STEPS = 30 if NUM_KILLS > 10 else 10
CHECKPOINT_EVERY = 5
ONE_NODE = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2)
TWO_NODES = Cluster(num_nodes=2, gpus_per_node=1, redundant_slots=2)
FEWER_SLOTS = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=1)
LAUNCHES = [
    Launch(cluster=ONE_NODE),
    Launch(cluster=TWO_NODES, launcher="pods"),
    Launch(cluster=TWO_NODES),
    Launch(cluster=FEWER_SLOTS, launcher="pods"),
]
TOLERANCE = 1e-5
"""The tolerance of tests/distributed/test_neutrality.py: replicas change the order of fp32 sums."""


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """A process that has imported megatron."""
    zygote = Zygote(tmp_path_factory.mktemp("zygote") / "zygote.log")
    yield zygote
    zygote.stop()


def folder(parent: Path, name: str) -> Path:
    made = parent / name
    made.mkdir()
    return made


@pytest.mark.long
@pytest.mark.parametrize(
    "checkpoint_every", [pytest.param(CHECKPOINT_EVERY, id="checkpoints"), pytest.param(0, id="no_checkpoints")]
)
def test_L5_every_step_after_a_kill_of_the_trainer_is_planned(
    world: World, round_number: int, zygote: Zygote, tmp_path: Path, checkpoint_every: int
) -> None:
    kills = draw_kills(
        round_number,
        NUM_KILLS,
        num_steps=NUM_STEPS,
        num_ranks=2,
        num_micro_batches=NUM_MICRO_BATCHES,
        checkpoint_every=checkpoint_every,
    )
    address = world.start_planner().address
    runs = {
        name: Run(
            folder=folder(tmp_path, name),
            num_steps=NUM_STEPS,
            launches=LAUNCHES,
            kills=kills,
            checkpoint_every=checkpoint_every,
            planner_address=address if name == "balanced" else "",
        )
        for name in ("balanced", "plain")
    }
    kept = f"checkpoints every {checkpoint_every} steps" if checkpoint_every else "no checkpoints"
    with world.fault(f"{NUM_KILLS} kills of the whole trainer in {NUM_STEPS} steps, {kept}", "L5 S5") as clock:
        for run in runs.values():
            train_to_the_end(zygote, run)
            assert len(run.records("killed")) == NUM_KILLS
        balanced = runs["balanced"]
        assert unplanned(balanced) == []
        worst = differences(balanced, runs["plain"])
        assert worst.num_compared >= 2 * NUM_STEPS
        assert worst.loss <= TOLERANCE, worst
        times_s = restart_times_s(balanced)
        assert len(times_s) == NUM_KILLS
        clock.recovery_s = max(times_s)
        clock.figures = (
            f"{len(balanced.records('began')) // 2} steps begun, all as planned; from a kill to the next planned step "
            f"{statistics.median(times_s):.1f} s (median), {max(times_s):.1f} s (longest); losses of all steps within "
            f"{worst.loss:.0e} of plain training"
        )


@pytest.mark.long
def test_L5_a_restart_on_fewer_ranks_with_fewer_slots_is_planned(world: World, zygote: Zygote, tmp_path: Path) -> None:
    """The checkpoint of four ranks on two nodes is loaded by two ranks on one node, which have one slot less."""
    address = world.start_planner().address
    runs = [
        Run(
            folder=folder(tmp_path, name),
            num_steps=7,
            launches=[
                Launch(cluster=Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=2)),
                Launch(cluster=FEWER_SLOTS, launcher="pods"),
            ],
            kills=[Kill(rank=3, step=6, stage="forward", micro_batch=1, whole_launch=True)],
            checkpoint_every=CHECKPOINT_EVERY,
            planner_address=planner_address,
        )
        for name, planner_address in (("balanced", address), ("plain", ""))
    ]
    for run in runs:
        train_to_the_end(zygote, run)
    balanced, plain = runs
    assert [each["world_size"] for each in balanced.records("started")] == [4] * 4 + [2] * 2
    assert unplanned(balanced) == []
    assert {each["step"] for each in balanced.records("began") if each["generation"] == 1} == {5, 6}
    worst = differences(balanced, plain)
    assert max(worst.loss, worst.grad_norm) <= TOLERANCE, worst


@pytest.mark.long
def test_L5_a_rollback_to_a_checkpoint_five_steps_back_is_planned(world: World, zygote: Zygote, tmp_path: Path) -> None:
    """After step 9 the ranks load the checkpoint before step 5, without a restart, and sample steps 5 to 9 again."""
    address = world.start_planner().address
    balanced, plain = (
        Run(
            folder=folder(tmp_path, name),
            num_steps=11,
            launches=[Launch(cluster=Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=2))],
            checkpoint_every=CHECKPOINT_EVERY,
            planner_address=planner_address,
            rollback=(9, 5),
        )
        for name, planner_address in (("balanced", address), ("plain", ""))
    )
    for run in (balanced, plain):
        train_to_the_end(zygote, run)
    steps = [each["step"] for each in balanced.records("began") if each["rank"] == 0]
    assert steps == [*range(10), *range(5, 11)]
    assert unplanned(balanced) == []
    assert any(each["moved_experts"] for each in balanced.records("began"))
    assert any(each["replicas"] for each in balanced.records("began"))
    worst = differences(balanced, plain)
    assert worst.num_compared == 4 * len(steps)
    assert max(worst.loss, worst.grad_norm) <= TOLERANCE, worst


@pytest.mark.long
def test_S4_a_launch_that_lives_trains_to_its_end_without_plans_beside_a_later_one(
    world: World, zygote: Zygote, tmp_path: Path
) -> None:
    """The first launch is between two steps while the second one trains."""
    address = world.start_planner().address
    first, second = (
        Run(
            folder=folder(tmp_path, name),
            num_steps=3,
            launches=[Launch(cluster=ONE_NODE, launcher=launcher)],
            planner_address=address,
            hold_at=hold_at,
        )
        for name, launcher, hold_at in (("first", "torchrun", 1), ("second", "pods", None))
    )
    with started(zygote, first) as living:
        eventually(lambda: len(first.records("holding")) == 2)
        with started(zygote, second) as later:
            wait_until_over(second, later)
            assert later.has_finished(), later.log()
        assert unplanned(second) == []
        (first.folder / "go on").touch()
        wait_until_over(first, living)
    began = [record for record in first.records("began") if record["step"] >= 1]
    assert {tuple(record["causes"]) for record in began} <= {("other_launch",)}, began


def test_L5_kills_come_at_every_kind_of_point() -> None:
    """Twenty kills reach more than half of the stages, both launchers' ways to restart, and a half-made checkpoint."""
    kills = [
        each
        for seed in range(3)
        for each in draw_kills(
            seed, 20, num_steps=30, num_ranks=2, num_micro_batches=NUM_MICRO_BATCHES, checkpoint_every=CHECKPOINT_EVERY
        )
    ]
    assert len({each.stage for each in kills}) > 8
    assert CHECKPOINT in {each.stage for each in kills}
    assert {each.whole_launch for each in kills} == {True, False}
