import numpy as np

from relibra.planning import PlanId, RankPlan


def test_the_rank_plans_of_all_ranks_share_out_every_replica(random_problem):
    plan = random_problem.random(0, num_sequences=40).solve()
    parts = [
        RankPlan.of(plan, rank=rank, id=PlanId(epoch=1, version=2), step=3) for rank in range(plan.cluster.num_ranks)
    ]
    replica_Q = plan.is_replica_Q
    np.testing.assert_array_equal(sum(part.replica_share_Q for part in parts), plan.quota_tokens_Q[replica_Q])
    for part in parts:
        np.testing.assert_array_equal(part.replica_index_Q4, plan.quota_index_Q4[replica_Q])
        assert part.digest == plan.digest


def test_S3_plan_ids_are_ordered_by_epoch_then_version():
    assert PlanId(epoch=1, version=9) < PlanId(epoch=2, version=1) < PlanId(epoch=2, version=2)
    assert str(PlanId(epoch=255, version=7)) == "00000000000000ff.7"
