"""Passes of an engine, with a scripted agent and a scripted way to the planner."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

from relibra.agent import Phase, StepOutcome
from relibra.planning import Cause, Cluster
from relibra.plugins.balanced_passes import BalancedPasses, within
from relibra.plugins.settings import PluginSettings


def outcome(*causes: Cause) -> StepOutcome:
    return StepOutcome(step=0, applied=None, causes=causes, reason="scripted")


class Scripted:
    """The passes, and what their agent and the planner do."""

    def __init__(self) -> None:
        self.planned = mock.Mock(has_planner=mock.Mock(return_value=True), submit=mock.Mock(return_value=True))
        self.planned.settings = PluginSettings(planner="planner:7420", job="job", plan_timeout_s=20.0)
        self.planned.cluster = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=1)
        self.begin_step = mock.Mock(return_value=outcome())
        self.runs_plain = mock.Mock(return_value=False)
        agent = mock.Mock(begin_step=self.begin_step, runs_plain=self.runs_plain)
        self.passes = BalancedPasses(agent, self.planned)

    def timeouts_s(self) -> list[float | None]:
        return [call.kwargs["plan_timeout_s"] for call in self.begin_step.call_args_list]


@pytest.fixture
def scripted() -> Scripted:
    return Scripted()


def test_only_a_pass_that_the_planner_took_may_wait_for_its_plan_as_long_as_the_settings_say(
    scripted: Scripted,
) -> None:
    batch = mock.Mock()
    scripted.passes.begin(Phase.UPDATE, batch)
    scripted.planned.submit.return_value = False
    scripted.passes.begin(Phase.UPDATE, batch)
    scripted.passes.begin(Phase.UPDATE)
    scripted.planned.has_planner.return_value = False
    scripted.passes.begin(Phase.UPDATE)
    assert scripted.timeouts_s() == [20.0, 1.0, 1.0, 0.0]
    assert [call.args[0] for call in scripted.begin_step.call_args_list] == [0, 1, 2, 3]


def test_L1_a_pass_waits_no_longer_than_the_micro_batches_of_the_last_one_ran(scripted: Scripted) -> None:
    """The limit holds before any plan has come, and time between the two passes does not count."""
    clock = mock.Mock(side_effect=[0.0, 1.0, 2.0, 100.0])
    with mock.patch.object(scripted.passes._wait, "_clock", clock):
        scripted.passes.begin(Phase.RECOMPUTE, mock.Mock())
        for _ in range(2):
            scripted.passes.forward_step(mock.Mock())()
        scripted.passes.pause()
        scripted.passes.begin(Phase.RECOMPUTE, mock.Mock())
    assert scripted.timeouts_s() == [20.0, 1.0]
    assert [call.kwargs["timeout_s"] for call in scripted.planned.submit.call_args_list] == [20.0, 1.0]


def test_L1_after_a_pass_from_history_that_got_no_answer_no_pass_waits(scripted: Scripted) -> None:
    scripted.begin_step.return_value = outcome(Cause.UNSCHEDULED)
    scripted.passes.begin(Phase.UPDATE)
    assert not scripted.planned.note_lost.called
    scripted.begin_step.return_value = outcome(Cause.LATE)
    scripted.passes.begin(Phase.UPDATE, mock.Mock())
    assert not scripted.planned.note_lost.called, "a plan that was submitted may take longer than it should"
    scripted.passes.begin(Phase.UPDATE)
    assert scripted.planned.note_lost.called


def test_passes_with_one_key_are_phases_of_one_step_if_the_planner_took_the_first(scripted: Scripted) -> None:
    for phase in Phase:
        scripted.passes.begin(phase, mock.Mock(), key="rollout")
    scripted.planned.submit.return_value = False
    for phase in Phase:
        scripted.passes.begin(phase, mock.Mock(), key="next rollout")
    assert [call.args for call in scripted.begin_step.call_args_list] == [
        (0, Phase.RECOMPUTE),
        (0, Phase.UPDATE),
        (1, Phase.RECOMPUTE),
        (2, Phase.UPDATE),
    ]


def test_N1_passes_that_run_plain_are_not_submitted_and_are_phases_of_one_step_as_planned_ones_are(
    scripted: Scripted,
) -> None:
    scripted.runs_plain.return_value = True
    for phase in Phase:
        scripted.passes.begin(phase, mock.Mock(), key="rollout")
    assert not scripted.planned.submit.called
    assert [call.args[0] for call in scripted.begin_step.call_args_list] == [0, 0]


def test_methods_of_a_framework_run_within_a_context_of_the_passes() -> None:
    """Arguments and results are the framework's own; a method that a version lacks is left out."""

    class Engine:
        def save(self, path: str, *, is_last: bool = False) -> tuple[str, bool, int]:
            return path, is_last, len(self.entered)

        entered: list[str]

    @within("ignoring_names", "save", "a_method_of_newer_versions")
    class Balanced(Engine):
        def __init__(self) -> None:
            self.entered, self.passes = [], mock.Mock(ignoring_names=self.ignoring_names)

        @contextmanager
        def ignoring_names(self) -> Iterator[None]:
            self.entered.append("names")
            yield
            self.entered.clear()

    engine = Balanced()
    assert engine.save("folder", is_last=True) == ("folder", True, 1)
    assert not engine.entered
    assert not hasattr(engine, "a_method_of_newer_versions")
    assert Engine.save is not Balanced.save
