"""Planned steps that are not faster are given up, and said; faster ones go on (N1). Time is logical."""

import pytest

from harness.distributed.layout import EP4, NODE
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    from collections import Counter
    from unittest import mock

    import numpy as np
    import torch
    import torch.distributed as dist

    from harness.distributed.attached import M, attached, plans_of
    from harness.distributed.networks import MODEL, Trained, routing
    from harness.distributed.observed import TOLERANCE, Differences, gathered
    from relibra.agent import Phase
    from relibra.agent.cells.layer import LayerExecution
    from relibra.agent.transport.process_group import _Transfers
    from relibra.planning import Cause, PlanId, Replicas, StepPlan

NUM_STEPS = 20


def copies_of_the_hottest(cluster, step):
    """Return a plan that moves nothing, and copies the two hottest experts of the hottest rank to its node."""
    index, size = [], cluster.gpus_per_node
    for micro_batch in range(M):
        chosen = torch.stack([routing(0, micro_batch, rank) for rank in range(cluster.num_ranks)])
        for layer in range(MODEL.num_layers):
            load_E = np.bincount(chosen[:, layer].flatten(), minlength=MODEL.num_experts)
            hottest = int(load_E.reshape(cluster.num_ranks, -1).sum(axis=1).argmax())
            of_rank = np.arange(MODEL.num_experts).reshape(cluster.num_ranks, -1)[hottest]
            first = hottest // size * size
            index += [
                (micro_batch, layer, int(expert), rank)
                for expert in of_rank[load_E[of_rank].argsort()[-2:]]
                for rank in range(first, first + size)
                if rank != hottest
            ]
    return StepPlan(
        id=PlanId(epoch=1, version=step + 1),
        step=step,
        digest=bytes(32),
        home_rank_LE=cluster.identity_placement(MODEL),
        replicas=Replicas.of(np.array(sorted(index), dtype=np.int32), M, MODEL.num_layers),
        num_micro_batches=M,
        reason="copies of the hottest",
    )


class LogicalTime:
    """A token that a rank computes takes 1 s, and each start of a transfer of replicas takes `wait_s`."""

    def __init__(self, wait_s):
        self.now_s, self.wait_s = 0.0, wait_s

    def running(self):
        compute, start = LayerExecution.compute, _Transfers.start

        def computing(execution, forward, tokens, *args, **kwargs):
            self.now_s += len(tokens)
            return compute(execution, forward, tokens, *args, **kwargs)

        def starting(*args):
            self.now_s += self.wait_s
            return start(*args)

        return mock.patch.multiple(LayerExecution, compute=computing), mock.patch.multiple(_Transfers, start=starting)


def trained(cluster, answers, wait_s):
    """Train plain and with these plans; return outcomes, homes after each step, the plans, and both jobs."""
    time = LogicalTime(wait_s)
    plain = Trained(cluster, "sgd")
    balanced, plans = attached(cluster, answers, optimizer="sgd", clock=lambda: time.now_s)
    outcomes, homes = [], []
    computing, starting = time.running()
    with computing, starting:
        for step in range(NUM_STEPS):
            outcomes.append(balanced.agent.begin_step(step, Phase.UPDATE))
            want, got = (each.step(0, M, with_gradients=False)["loss"] for each in (plain, balanced))
            assert np.allclose(want, got, rtol=TOLERANCE), step
            balanced.agent.end_step()
            homes.append(balanced.agent.home_rank_LE.copy())
    return outcomes, homes, plans, plain, balanced


def causes_of(outcomes):
    found = [str(outcome.causes[0]) if outcome.causes else None for outcome in outcomes]
    assert all(other == found for other in gathered(found)), "S1: all ranks choose alike"
    return found


@on_ranks(NODE, EP4)
def test_N1_S1_S5_slow_transfers_end_planned_steps_and_training_stays_that_of_plain_megatron(cluster):
    with mock.patch("relibra.agent.plans.trials.log.log") as said:
        outcomes, homes, plans, plain, balanced = trained(cluster, plans_of(cluster, range(NUM_STEPS)), 50.0)
    causes = causes_of(outcomes)
    stopped = causes.index(str(Cause.NOT_FASTER))
    assert Counter(causes[:stopped]) == {None: 4, str(Cause.MEASURING): 4}, "a trial is cheap"
    assert set(causes[stopped:]) == {str(Cause.NOT_FASTER)}
    assert all("times as long per token as plain ones" in each.reason for each in outcomes[stopped:])
    assert said.call_count == (dist.get_rank() == 0), "the log of the first rank says it, once"
    assert [str(report.causes[0]) for report in plans.reports[stopped:]] == causes[stopped:], "reports tell the page"
    assert all(report.reorder_sent_bytes == report.replica_sent_bytes == 0 for report in plans.reports[stopped:])
    assert not (homes[0] == cluster.identity_placement(MODEL)).all(), "the first plans moved experts"
    assert all((each == homes[stopped - 1]).all() for each in homes[stopped:]), "homes stay where they are"
    differences = Differences()
    differences.note("weights", balanced.weights(), plain.weights())
    assert differences.of["weights"] <= TOLERANCE
    balanced.agent.detach()
    balanced.agent = None
    differences.note("detached", balanced.weights(), plain.weights())
    assert differences.of["detached"] <= TOLERANCE


@on_ranks(NODE, EP4)
def test_N1_S5_plans_that_are_faster_go_on_after_the_trial(cluster):
    answers = {step: copies_of_the_hottest(cluster, step) for step in range(NUM_STEPS)}
    outcomes, _, plans, plain, balanced = trained(cluster, answers, 0.0)
    causes = causes_of(outcomes)
    assert Counter(causes[:12]) == {None: 6, str(Cause.MEASURING): 6}
    assert set(causes[12:]) == {None}
    assert all(outcome.num_replicas > 0 for outcome in outcomes[12:])
    slowest = {
        kind: max(gathered(int(report.realised_load_ML.sum())))
        for kind, report in zip(causes, plans.reports, strict=True)
    }
    assert slowest[None] < slowest[str(Cause.MEASURING)]
    differences = Differences()
    differences.note("weights", balanced.weights(), plain.weights())
    assert differences.of["weights"] <= TOLERANCE
    balanced.agent.detach()


@pytest.mark.long
@on_ranks(NODE)
def test_N1_a_job_goes_back_to_plans_once_they_are_faster(cluster):
    """The pause between trials is cut short, so that few steps show it."""
    answers = {step: copies_of_the_hottest(cluster, step) for step in range(40)}
    time = LogicalTime(500.0)
    balanced, _ = attached(cluster, answers, optimizer="sgd", clock=lambda: time.now_s)
    causes, (computing, starting) = [], time.running()
    with mock.patch("relibra.agent.plans.trial.FIRST_PAUSE", 4), computing, starting:
        for step in range(26):
            outcome = balanced.agent.begin_step(step, Phase.UPDATE)
            causes.append(outcome.causes)
            balanced.step(0, M, with_gradients=False)
            balanced.agent.end_step()
            if Cause.NOT_FASTER in outcome.causes:
                time.wait_s = 0.0
    assert (Cause.NOT_FASTER,) in causes[:10]
    assert set(causes[-3:]) == {()}
    balanced.agent.detach()
