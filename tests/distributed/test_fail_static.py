"""Without a plan that all ranks hold, a step keeps the last one, says why, and still trains."""

from harness.distributed.layout import EP4
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    import copy
    import dataclasses

    import torch.distributed as dist

    from harness.distributed.attached import M, attached, note_step
    from harness.distributed.networks import MODEL, Trained
    from harness.distributed.observed import TOLERANCE, Differences, gathered
    from harness.distributed.plans import random_plan
    from relibra.agent import Phase
    from relibra.planning import Cluster, PlanId

NO_PLAN, OTHER_ID, OLDER_EPOCH, INVALID, LATE, OTHER_MODEL, OTHER_CLUSTER, LAST = range(1, 9)
EPOCH = 2**63 + 5


def answers_of(rank, cluster):
    """Return an answer for every way in which a plan can be missing, between two steps with plans."""
    good = [random_plan(5 + step, step, MODEL, cluster, M) for step in range(LAST + 1)]
    answers = dict(enumerate(good))
    if rank == 1:
        answers[NO_PLAN] = None
    if rank == 2:
        other = PlanId(epoch=EPOCH, version=99)
        answers[OTHER_ID] = random_plan(7, OTHER_ID, MODEL, cluster, M, plan_id=other)
    older = PlanId(epoch=EPOCH - 1, version=50)
    answers[OLDER_EPOCH] = random_plan(8, OLDER_EPOCH, MODEL, cluster, M, plan_id=older)
    if rank == 3:
        answers[INVALID] = copy.deepcopy(good[INVALID])
        answers[INVALID].home_rank_LE[0, :] = 0
    answers[LATE] = good[LATE - 1]
    fewer_experts = dataclasses.replace(MODEL, num_experts=8)
    answers[OTHER_MODEL] = random_plan(9, OTHER_MODEL, fewer_experts, cluster, M)
    one_node = Cluster(num_nodes=1, gpus_per_node=4, redundant_slots=2)
    answers[OTHER_CLUSTER] = random_plan(10, OTHER_CLUSTER, MODEL, one_node, M)
    return answers


@on_ranks(EP4, runs_on_a_device=True)
def test_S1_S2_S4_S5_L1_L2_steps_without_a_common_plan_keep_the_last_one_and_say_why(cluster):
    rank = dist.get_rank()
    plain, (balanced, plans) = Trained(cluster, "sgd"), attached(cluster, answers_of(rank, cluster), optimizer="sgd")
    agent, differences, outcomes, placements = balanced.agent, Differences(), [], []
    for step in range(LAST + 1):
        outcomes.append(agent.begin_step(step, Phase.UPDATE))
        if step in (0, NO_PLAN, INVALID, LAST):
            note_step(differences, plain, balanced, step)
        placements.append(agent.home_rank_LE.tolist())
        agent.end_step()
    agent.detach()
    executed = [(str(outcome.applied), placement) for outcome, placement in zip(outcomes, placements, strict=True)]
    assert all(other == executed for other in gathered(executed)), "S1: all ranks execute the same plan"
    for step, cause, reason in (
        (NO_PLAN, "late", "rank 1 without a plan in time"),
        (OTHER_ID, "disagreed", "ranks hold different plans: ranks 0, 1, 3 plan"),
        (OLDER_EPOCH, "stale", "ranks 0, 1, 2, 3 offered an older epoch"),
        (INVALID, "invalid", "rank 3 offered an invalid plan"),
        (LATE, "invalid", "ranks 0, 1, 2, 3 offered an invalid plan"),
        (OTHER_MODEL, "invalid", "ranks 0, 1, 2, 3 offered an invalid plan"),
        (OTHER_CLUSTER, "invalid", "ranks 0, 1, 2, 3 offered an invalid plan"),
    ):
        outcome, report = outcomes[step], plans.reports[step]
        assert outcome.applied is None
        assert outcome.reason.startswith(reason)
        assert report.reason == outcome.reason
        assert [*outcome.causes] == [*report.causes] == [cause]
        assert placements[step] == placements[0]
        assert (outcome.kept, outcome.num_replicas) == (outcomes[0].applied, outcomes[0].num_replicas)
    reasons = [outcome.reason for outcome in outcomes]
    assert reasons[NO_PLAN].endswith("(this rank: the script has none)") == (rank == 1)
    assert ("is home to 16 experts, expected 4" in reasons[INVALID]) == (rank == 3)
    assert ("this rank" in reasons[INVALID]) == (rank == 3)
    assert "plan.step: expected 5, got 4" in reasons[LATE]
    assert "(2, 8)" in reasons[OTHER_MODEL]
    assert "node" in reasons[OTHER_CLUSTER]
    assert None not in (outcomes[0].applied, outcomes[LAST].applied), "L2: the next common plan is applied"
    assert placements[LAST] != placements[0]
    assert max(differences.of.values()) <= TOLERANCE, differences.of
