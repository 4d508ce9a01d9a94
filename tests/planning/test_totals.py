import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from relibra.planning.load import home_loads
from relibra.planning.totals import PlanTotals


@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_totals_are_the_sums_of_all_rows(problems, data):
    problem = data.draw(problems)
    plan = problem.solve()
    totals = PlanTotals.of(plan)
    identity_LE = plan.cluster.identity_placement(plan.model)
    np.testing.assert_array_equal(totals.load_LE, problem.load_MLE.sum(axis=0))
    np.testing.assert_array_equal(totals.after_LR, plan.rank_loads_MLR.sum(axis=0))
    before_MLR = home_loads(problem.load_MLE, identity_LE, plan.cluster.num_ranks)
    np.testing.assert_array_equal(totals.before_LR, before_MLR.sum(axis=0))
    assert totals.num_replicas_LE.sum() == plan.is_replica_Q.sum()


def test_the_most_replicated_come_first_and_others_not_at_all(random_problem):
    totals = PlanTotals.of(random_problem.random(0, redundant_slots=2).solve())
    found = totals.most_replicated(1000)
    numbers = [totals.num_replicas_LE[each] for each in found]
    assert numbers == sorted(numbers, reverse=True)
    assert len(found) == np.count_nonzero(totals.num_replicas_LE) > 0
    assert totals.most_replicated(2) == found[:2]
