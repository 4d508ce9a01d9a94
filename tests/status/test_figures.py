import numpy as np

from harness.watched_job import WatchedJob
from relibra.status.figures import PlanFigures


def test_the_most_replicated_come_first_and_others_not_at_all(job: WatchedJob) -> None:
    plan = job.plans[2]
    figures = PlanFigures(plan=plan)
    shown = figures.most_replicated(1000)
    numbers = [num_replicas for *_, num_replicas, _ in shown]
    assert numbers == sorted(numbers, reverse=True)
    assert sum(numbers) == len(plan.replica_index_Y4) > 0
    assert 0 not in numbers
    assert figures.most_replicated(2) == shown[:2]
    for layer, expert, home, _, tokens in shown:
        assert (home, tokens) == (plan.home_rank_LE[layer, expert], plan.load_MLE[:, layer, expert].sum())


def test_the_slowest_rank_of_a_layer_is_that_of_all_rows(job: WatchedJob) -> None:
    plan = job.plans[2]
    loads_LR = plan.rank_loads_MLR.sum(axis=0)
    for layer, (_, before, rank, after) in enumerate(PlanFigures(plan=plan).slowest_ranks()):
        assert loads_LR[layer, rank] == loads_LR[layer].max()
        np.testing.assert_allclose(after, loads_LR[layer].max() / loads_LR[layer].mean())
        assert before >= after
