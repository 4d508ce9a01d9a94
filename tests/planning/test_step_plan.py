import numpy as np

from relibra.planning import PlanId, StepPlan


def test_ranks_execute_the_placement_and_the_replicas_of_a_plan(random_problem):
    plan = random_problem.random(0, num_sequences=40).solve()
    part = StepPlan.of(plan, id=PlanId(epoch=1, version=2), step=3)
    np.testing.assert_array_equal(part.replicas.index_Y4, plan.quotas.index_Q4[plan.quotas.is_replica_Q])
    np.testing.assert_array_equal(part.home_rank_LE, plan.home_rank_LE)
    assert part.digest == plan.digest
    assert part.expected_gain == plan.prediction.imbalance_before / plan.prediction.imbalance_after - 1 > 0


def test_S3_plan_ids_are_ordered_by_epoch_then_version():
    assert PlanId(epoch=1, version=9) < PlanId(epoch=2, version=1) < PlanId(epoch=2, version=2)
    assert str(PlanId(epoch=255, version=7)) == "00000000000000ff.7"
