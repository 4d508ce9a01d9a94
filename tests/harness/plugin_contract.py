"""What the plug-in of every framework keeps: acts and assertions, on each of two ranks with the framework's own code.

A `Plugin` says how a framework's engine is built, alone and with the plug-in, and how it trains. `Contract` builds,
trains and compares. What one framework has besides stands in its wing, as scenarios of the same form.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from harness import exports
from harness.distributed.plans import random_plan
from harness.scripted_passes import scripted_passes
from harness.tiny_qwen3_moe import NUM_EXPERTS, NUM_LAYERS, TOP_K
from harness.trained import NUM_EXPORTED, ROUNDING, Trained, differing
from relibra.agent import Agent, Session, StepOutcome
from relibra.planning import Cause, Cluster, ExecutionReport, Model
from relibra.plugins import balanced_passes, plan_wait
from relibra.wire.client import PlannerClient

AWAY = "127.0.0.1:1"
"""The address of no planner."""
MODEL = Model(num_layers=NUM_LAYERS, num_experts=NUM_EXPERTS, top_k=TOP_K)
CLUSTER = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=1)
NUM_STALE = 60
"""Fewer tensors than differ between two updates."""
_MOST_MICRO_BATCHES = 8
_HISTORY_S = 50.0
"""Less than a rank waits for another."""

Exported = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """Where a scenario runs."""

    number: int
    folder: Path
    planner: str
    """The address of a planner."""


def set_environment(planner: str, job: str) -> None:
    """Set what a user sets: the planner and the name of the job."""
    os.environ.update(RELIBRA_PLANNER=planner, RELIBRA_JOB=job)


Scenario = Callable[[Rank], None]
"""Acts and asserts on one rank; its docstring says what holds."""


def named(*scenarios: Scenario) -> Mapping[str, Scenario]:
    """Return scenarios by name, in order."""
    return {scenario.__name__: scenario for scenario in scenarios}


@contextmanager
def refused(of_class: type[Exception], text: str) -> Iterator[None]:
    """Check that the body is refused with a text."""
    refusal = ""
    try:
        yield
    except of_class as error:
        refusal = str(error)
    assert text in refusal, refusal or f"expected {of_class.__name__}: {text}"


@contextmanager
def noted_outcomes(*, awaits_history: bool = False, job: str | None = None) -> Iterator[list[StepOutcome]]:
    """Yield a list that gets the outcome of every pass that begins in the body.

    Passes are much longer in a job than here. So no pass here is too short to wait for its plan.

    Args:
        awaits_history: whether a pass begins only when the planner has a plan from the reports of the pass before the
            last one, which it has made meanwhile in a job.
        job: the job whose passes they are; by default those of all jobs.
    """
    outcomes: list[StepOutcome] = []
    plain = Agent.begin_step

    def begin_step(self: Agent, step: int, *args: Any, **kwargs: Any) -> StepOutcome:
        is_of_job = job in (None, self._config.job_id)
        if awaits_history and is_of_job:
            _await_history(self, step - 1)
        outcome = plain(self, step, *args, **kwargs)
        if is_of_job:
            outcomes.append(outcome)
        return outcome

    with (
        mock.patch.object(Agent, "begin_step", begin_step),
        mock.patch.object(plan_wait, "most_wait_s", lambda limit_s, *_: limit_s),
        mock.patch.object(balanced_passes, "_ANSWER_S", _HISTORY_S),
    ):
        yield outcomes


def _await_history(agent: Agent, step: int) -> None:
    """Return once the planner has a plan for `step` from the reports of earlier steps."""
    config, deadline_s = agent._config, time.monotonic() + _HISTORY_S
    with PlannerClient(config.planner_address, timeout_s=_HISTORY_S, attempt=config.attempt) as planner:
        planned = 0
        while planned < step:
            assert time.monotonic() < deadline_s, f"no plan from history for step {step} within {_HISTORY_S} s"
            time.sleep(0.01)
            plan = planner.fetch_plan(config.job_id, step + 1, config.model)
            planned = 0 if plan is None else plan.step


@contextmanager
def moving(at: Rank, num_passes: int) -> Iterator[list[StepOutcome]]:
    """Have engines that are built in the body move experts and make replicas before every pass; yield the outcomes."""
    plans = {index: random_plan(index + 1, index, MODEL, CLUSTER, _MOST_MICRO_BATCHES) for index in range(num_passes)}
    with scripted_passes(dict(plans)), noted_outcomes() as outcomes:
        yield outcomes


def check_moved(outcomes: list[StepOutcome], num_passes: int | None = None) -> None:
    """Check that experts moved and had replicas in every pass."""
    assert num_passes in (None, len(outcomes))
    assert outcomes
    assert all(outcome.applied is not None and outcome.num_moved_experts for outcome in outcomes)
    assert num_passes is None or all(outcome.num_replicas for outcome in outcomes)


def check_applied(outcomes: list[StepOutcome], num_passes: int) -> None:
    """Check that every pass ran under its plan."""
    assert len(outcomes) == num_passes
    assert all(outcome.applied is not None for outcome in outcomes), [outcome.reason for outcome in outcomes]


def check_planned(outcomes: list[StepOutcome], num_passes: int) -> None:
    """Check that a planner planned every pass."""
    check_applied(outcomes, num_passes)
    assert any(outcome.num_moved_experts or outcome.num_replicas for outcome in outcomes)


def check_planned_beside(outcomes: list[StepOutcome], num_passes: int) -> None:
    """Check that a planner planned the passes of a model beside the policy from history, and that no expert moved."""
    assert [outcome.step for outcome in outcomes] == list(range(num_passes))
    assert outcomes[-1].applied is not None, [outcome.reason for outcome in outcomes]
    assert outcomes[-1].num_replicas
    assert not any(outcome.num_moved_experts for outcome in outcomes)


def check_equal(trained: Trained, alone: Trained) -> None:
    """Check that an engine computed and exported what the framework alone did."""
    differences = trained.differences(alone)
    assert differences.numbers is None or differences.numbers < ROUNDING
    assert differences.outputs is None or differences.outputs < ROUNDING
    assert differences.exports
    assert not any(differences.exports), differences.exports


def check_nothing_moves(export: Callable[[], Exported]) -> None:
    """Check that experts stay where they are for an export, which is bit by bit that from original places."""
    compared = exports.compared(export)
    assert compared.moved == []
    assert compared.by_place, "experts have not moved, or the comparison does not see it"
    assert all(".experts." in name for name in compared.by_place)
    assert compared.sent_bytes == 0 < compared.sent_bytes_if_moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A framework on one rank."""

    build: Callable[..., Any]
    """Builds an engine at a `Rank`, with the plug-in if `balanced`; takes options of the framework."""
    train: Callable[..., Trained]
    """Trains an engine at a `Rank`, takes options of the framework; by default the whole job of the contract."""
    exported: Callable[[Any], Exported]
    """Returns what the engine sends to the rollout."""
    stores_by_expert: Callable[[Any], bool]
    """Returns whether the engine's checkpoints have optimizer state by expert, which is no framework's own format."""
    num_passes: int
    """The passes of the whole job that have a plan."""
    steps_per_update: int = 1
    """The optimizer's steps in each update of the job."""
    close: Callable[[Any], None] = lambda engine: engine.passes.close()


class Contract:
    """The scenarios of one framework that all frameworks share. They run in order, and keep what later ones need."""

    own: Any
    """The framework's own engine after the whole job."""
    alone: Trained
    """What it computed."""
    moved: Any
    """The engine whose experts have moved."""

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin

    def the_framework_alone_trains(self, at: Rank) -> None:
        """The framework's own engine learns in this environment, and exports all tensors."""
        self.own = self.plugin.build(at, balanced=False)
        self.alone = self.plugin.train(at, self.own)
        assert len(set(self.alone.numbers)) == len(self.alone.numbers) > 1
        assert all(norm > 0.01 for _, norm in self.alone.numbers)
        assert {len(exported) for exported in self.alone.exports} == {NUM_EXPORTED}

    def S5_all_is_that_of_the_framework_alone_when_experts_move_before_every_pass(self, at: Rank) -> None:
        """Losses, gradient norms, log-probabilities and exported weights are those of the framework alone."""
        set_environment(AWAY, "scripted")
        with moving(at, self.plugin.num_passes) as outcomes:
            self.moved = self.plugin.build(at, balanced=True)
            trained = self.plugin.train(at, self.moved)
        check_moved(outcomes[: self.plugin.num_passes], self.plugin.num_passes)
        check_equal(trained, self.alone)

    def no_expert_moves_for_an_export_and_permuted_and_stale_weights_are_seen(self, at: Rank) -> None:
        """Exports rename experts; the comparison sees weights by place, and those of another update."""
        check_nothing_moves(lambda: self.plugin.exported(self.moved))
        assert len(differing(self.plugin.exported(self.moved), self.alone.exports[-2])) > NUM_STALE

    def S5_lora_is_that_of_the_framework_alone_when_experts_move_before_every_pass(self, at: Rank) -> None:
        """The experts of a layer share an adapter, and their own weights are frozen."""
        alone = self.plugin.train(at, self.plugin.build(at, balanced=False, is_adapted=True))
        set_environment(AWAY, "adapted")
        with moving(at, self.plugin.num_passes) as outcomes:
            engine = self.plugin.build(at, balanced=True, is_adapted=True)
            trained = self.plugin.train(at, engine)
        check_moved(outcomes[: self.plugin.num_passes], self.plugin.num_passes)
        check_equal(trained, alone)
        of_experts = {name for name in alone.exports[-1] if ".experts." in name}
        assert of_experts
        assert of_experts <= set(differing(alone.exports[-1], alone.exports[-2]))
        self.plugin.close(engine)

    def L1_a_job_whose_planner_is_away_trains_as_without_the_plug_in(self, at: Rank) -> None:
        """The planner is away: no pass has a plan or waits for one, and all is that of the framework alone."""
        set_environment(AWAY, "away")
        with noted_outcomes() as outcomes:
            trained = self.plugin.train(at, self.plugin.build(at, balanced=True))
        assert outcomes
        assert not any(outcome.applied or outcome.kept for outcome in outcomes)
        check_equal(trained, self.alone)

    def S5_a_job_that_observes_trains_as_the_framework_alone_and_reports_its_loads(self, at: Rank) -> None:
        """With `mode=observe` no expert moves or is copied, and every update reports what the routers chose."""
        set_environment(at.planner, "observed")
        reports: list[ExecutionReport] = []
        plain = Session.report

        def report(session: Session, of_step: ExecutionReport) -> None:
            reports.append(of_step)
            plain(session, of_step)

        with mock.patch.dict(os.environ, RELIBRA_MODE="observe"), mock.patch.object(Session, "report", report):
            trained = self.plugin.train(at, self.plugin.build(at, balanced=True))
        check_equal(trained, self.alone)
        assert [of_step.step for of_step in reports] == list(range(len(trained.numbers) * self.plugin.steps_per_update))
        assert all(of_step.causes == (Cause.OBSERVING,) for of_step in reports)
        assert all(of_step.expert_load_NLE.any() for of_step in reports)

    def checkpoints_are_the_frameworks_own_unless_experts_may_move(self, at: Rank) -> None:
        """On one machine they are; on several they are not, unless the user wants no expert to move."""
        for machines, reorder, is_own in ((1, "auto", True), (2, "auto", False), (2, "never", True)):
            set_environment(AWAY, "stored")
            with (
                mock.patch.dict(os.environ, RELIBRA_REORDER=reorder),
                mock.patch.object(socket, "gethostname", return_value=f"node-{at.number % machines}"),
            ):
                engine = self.plugin.build(at, balanced=True)
            assert self.plugin.stores_by_expert(engine) is not is_own
            self.plugin.close(engine)

    def check_planned_from_history(
        self, at: Rank, job: str, *, of_build: Mapping[str, Any] = {}, **of_train: Any
    ) -> None:
        """Check that a real planner plans a job whose routing nobody knows in advance from the passes before.

        The first pass has no plan, the last one has one, and all is that of the framework alone.
        """
        outcomes = self.trained(at, job, awaits_history=True, of_build=of_build, **of_train)
        assert (outcomes[0].applied, outcomes[0].causes) == (None, (Cause.UNSCHEDULED,))
        later = [outcome for outcome in outcomes if outcome.step > 1]
        assert later
        assert all(outcome.applied or outcome.kept for outcome in later), [outcome.reason for outcome in later]
        assert any(outcome.applied and outcome.num_replicas for outcome in later)

    def check_planned(
        self, at: Rank, job: str, num_passes: int, *, of_build: Mapping[str, Any] = {}, **of_train: Any
    ) -> None:
        """Check that a real planner plans every pass of a job, and that all is that of the framework alone."""
        check_planned(self.trained(at, job, of_build=of_build, **of_train), num_passes)

    def trained(
        self, at: Rank, job: str, *, awaits_history: bool = False, of_build: Mapping[str, Any] = {}, **of_train: Any
    ) -> list[StepOutcome]:
        """Run a job with a real planner; check that all is that of the framework alone, and return the outcomes."""
        alone = self.plugin.train(at, self.plugin.build(at, balanced=False, **of_build), **of_train)
        set_environment(at.planner, job)
        with noted_outcomes(awaits_history=awaits_history, job=job) as outcomes:
            engine = self.plugin.build(at, balanced=True, **of_build)
            trained = self.plugin.train(at, engine, **of_train)
        check_equal(trained, alone)
        self.plugin.close(engine)
        return outcomes
