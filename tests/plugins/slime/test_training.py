import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from relibra.agent import Phase, StepOutcome
from relibra.errors import InvalidInput, Unsupported
from relibra.planning import Cluster
from relibra.plugins.balanced_passes import BalancedPasses
from relibra.plugins.settings import PluginSettings
from relibra.plugins.slime import training as module
from relibra.plugins.slime.framework import SLIME
from relibra.plugins.slime.training import BalancedTraining


class Recorded:
    """The calls that a training makes of its agent and of its way to the planner, in order."""

    def __init__(self, *, is_taken: bool = True) -> None:
        self.calls: list[Any] = []
        self._is_taken, self.is_reporting, self.homes_stay = is_taken, True, False
        self.settings, self.layers = PluginSettings(planner="planner:7420", job="job"), dict[int, Any]()
        self.cluster = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=1)

    def submit(self, pass_index: int, batch: Callable[[], Any], **_: Any) -> bool:
        self.calls.append(("submit", pass_index, len(batch().micro_batches)))
        return self._is_taken

    def has_planner(self) -> bool:
        return True

    def runs_plain(self, phase: Phase) -> bool:
        return False

    def begin_step(self, step: int, phase: Phase, *, plan_timeout_s: float | None) -> Any:
        self.calls.append((phase, step))
        return StepOutcome(step=step, applied=None, reason="recorded")

    def end_step(self) -> None:
        self.calls.append("end")

    def ignoring_names(self) -> AbstractContextManager[None]:
        return nullcontext()

    def follow(self, backuper: Any) -> None:
        """Backups have no weights here."""

    def forget_copies(self) -> None:
        self.calls.append("other weights")

    def forward_step(self, function: Callable[[], str]) -> Callable[[], str]:
        return lambda: f"{function()} under a plan"


def job_arguments(folder: Path, **options: Any) -> SimpleNamespace:
    config = {"num_hidden_layers": 1, "num_experts": 4, "num_experts_per_tok": 2}
    (folder / "config.json").write_text(json.dumps(config))
    given = {
        "keep_old_actor": False,
        "hf_checkpoint": str(folder),
        "relibra": {"planner": "planner:7420"},
    }
    return SimpleNamespace(**(given | options))


def attached(folder: Path, recorded: Recorded, tags: Sequence[str] = ("actor",), **options: Any) -> BalancedTraining:
    training = BalancedTraining(SLIME, job_arguments(folder, **options))
    passes = BalancedPasses(recorded, recorded)  # type: ignore[arg-type]
    with mock.patch.object(module, "attach_job", return_value=passes):
        training.attach("actor", [], None)
    training.follow(SimpleNamespace(backup_tags=tags))
    training.send_right_names(SimpleNamespace(update_weights=None))  # as the actor's `init` says what sends its weights
    return training


def rollout(training: BalancedTraining, num_micro_batches: list[int]) -> list[str]:
    """Run the passes of a rollout as slime does; return how they ran."""
    data = {
        "tokens": [[0, 0]] * sum(num_micro_batches),
        "rollout_routed_experts": [[[[0, 1]]]] * sum(num_micro_batches),
        "micro_batch_indices": [[sample] for sample in range(sum(num_micro_batches))],
    }
    training.note_rollout(data, [], num_micro_batches)
    ran = list[str]()

    def schedule(*, forward_step_func: Callable[[], str]) -> None:
        ran.append(forward_step_func())

    for passes, name in (
        (training.log_probs("ref_"), "ref"),
        (training.log_probs(""), "old"),
        (training.updates(), "new"),
    ):
        with passes:
            for _ in num_micro_batches:
                training.run(schedule, forward_step_func=lambda name=name: name)
    return ran


@pytest.mark.parametrize("homes_stay", [False, True])
def test_S5_optimizer_state_is_stored_by_expert_where_experts_may_move(tmp_path: Path, homes_stay: bool) -> None:
    recorded = Recorded()
    recorded.homes_stay = homes_stay
    training = attached(tmp_path, recorded, dist_ckpt_optim_fully_reshardable=False)
    assert training._args.dist_ckpt_optim_fully_reshardable is not homes_stay


def test_both_passes_of_a_rollout_with_one_training_step_are_phases_of_one_step(tmp_path: Path) -> None:
    recorded = Recorded()
    training = attached(tmp_path, recorded)
    assert rollout(training, [2]) == ["ref", "old under a plan", "new under a plan"]
    rollout(training, [3])
    assert recorded.calls == [
        ("submit", 0, 2),
        (Phase.RECOMPUTE, 0),
        (Phase.UPDATE, 0),
        "end",
        ("submit", 1, 3),
        (Phase.RECOMPUTE, 1),
        (Phase.UPDATE, 1),
        "end",
    ]


def test_passes_of_several_training_steps_are_steps_of_their_own(tmp_path: Path) -> None:
    recorded = Recorded()
    rollout(attached(tmp_path, recorded), [1, 2])
    assert recorded.calls == [
        ("submit", 0, 1),
        (Phase.RECOMPUTE, 0),
        ("submit", 1, 2),
        (Phase.RECOMPUTE, 1),
        ("submit", 2, 1),
        (Phase.UPDATE, 2),
        ("submit", 3, 2),
        (Phase.UPDATE, 3),
        "end",
    ]


def test_other_models_run_in_a_step_of_their_own_that_begins_before_their_weights_come(tmp_path: Path) -> None:
    recorded = Recorded()
    training = attached(tmp_path, recorded, tags=("actor", "ref"))
    assert rollout(training, [2]) == ["ref", "old under a plan", "new under a plan"], "init may leave other weights"
    recorded.calls.clear()
    assert rollout(training, [2]) == ["ref under a plan", "old under a plan", "new under a plan"]
    assert recorded.calls == [
        (Phase.RECOMPUTE, 1),
        "other weights",
        ("submit", 2, 2),
        (Phase.RECOMPUTE, 2),
        (Phase.UPDATE, 2),
        "end",
    ]


def test_an_old_actor_runs_with_the_reference_in_one_step(tmp_path: Path) -> None:
    recorded = Recorded()
    training = attached(tmp_path, recorded, tags=("actor", "ref", "old_actor", "rollout_actor"), keep_old_actor=True)
    assert rollout(training, [1]) == ["ref", "old", "new under a plan"]
    recorded.calls.clear()
    assert rollout(training, [1]) == ["ref under a plan", "old under a plan", "new under a plan"]
    assert recorded.calls == [
        (Phase.RECOMPUTE, 1),
        "other weights",
        "other weights",
        ("submit", 2, 1),
        (Phase.UPDATE, 2),
        "end",
    ]


def test_other_models_whose_log_probabilities_nobody_needs_have_no_step(tmp_path: Path) -> None:
    recorded = Recorded()
    training = attached(tmp_path, recorded, tags=("actor", "ref"), compute_advantages_and_returns=False)
    for _ in range(2):
        rollout(training, [1])
    assert [call for call in recorded.calls if call in ((Phase.RECOMPUTE, 0), (Phase.RECOMPUTE, 1))] == [
        (Phase.RECOMPUTE, 0),
        (Phase.RECOMPUTE, 1),
    ]


def test_a_pass_that_is_not_taken_is_planned_from_history(tmp_path: Path) -> None:
    recorded = Recorded(is_taken=False)
    assert rollout(attached(tmp_path, recorded), [1]) == ["ref", "old under a plan", "new under a plan"]
    assert recorded.calls == [
        ("submit", 0, 1),
        (Phase.RECOMPUTE, 0),
        ("submit", 1, 1),
        (Phase.UPDATE, 1),
        "end",
    ]


def test_a_process_without_an_agent_trains_as_it_is(tmp_path: Path) -> None:
    assert rollout(BalancedTraining(SLIME, job_arguments(tmp_path)), [1]) == ["ref", "old", "new"]


def test_a_rollout_without_routing_is_planned_from_history(tmp_path: Path) -> None:
    recorded = Recorded()
    training = attached(tmp_path, recorded)
    for passes in (training.log_probs(""), training.updates()):
        with passes:
            training.run(lambda **_: None, forward_step_func=None)
    assert recorded.calls == [(Phase.RECOMPUTE, 0), (Phase.UPDATE, 1), "end"]


def test_S9_an_actor_that_does_not_say_what_sends_its_weights_is_refused(tmp_path: Path) -> None:
    training = BalancedTraining(SLIME, job_arguments(tmp_path))
    passes = BalancedPasses(Recorded(), Recorded())  # type: ignore[arg-type]
    with mock.patch.object(module, "attach_job", return_value=passes):
        training.attach("actor", [], None)
    with pytest.raises(Unsupported, match="keeps the sender of its weights in weight_updater"), training.updates():
        pass


def test_a_job_needs_a_planner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELIBRA_PLANNER", raising=False)
    with pytest.raises(InvalidInput, match=r"relibra\.planner: expected the planner as host:port"):
        BalancedTraining(SLIME, job_arguments(tmp_path, relibra=None))


@pytest.mark.parametrize(
    ("options", "job"),
    [
        ({}, "slime"),
        ({"save": "/data/Qwen3_slime/"}, "Qwen3_slime"),
        ({"save": "/data/Qwen3_slime", "wandb_project": "RL", "wandb_group": "third"}, "RL-third"),
    ],
)
def test_a_job_that_nobody_names_has_the_name_of_its_run_or_of_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], job: str
) -> None:
    monkeypatch.delenv("RELIBRA_JOB", raising=False)
    training = attached(tmp_path, Recorded())
    with mock.patch.object(module, "attach_job", return_value=training.passes) as attach:
        BalancedTraining(SLIME, job_arguments(tmp_path, **options)).attach("critic", [], None)
    assert attach.call_args.args[0].job == job
