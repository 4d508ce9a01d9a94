"""One test for every sentence of `check_plan`: it breaks one invariant of a valid plan, and the check must name it."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relibra.errors import InvalidPlan
from relibra.planning import (
    Cluster,
    Model,
    PlanId,
    Replicas,
    StepPlan,
    check,
    check_placement,
    check_plan,
    check_step_plan,
)


@pytest.fixture(scope="module")
def problem(random_problem):
    return random_problem.random(0, num_sequences=40)


@pytest.fixture(scope="module")
def plan(problem):
    plan = problem.solve()
    assert plan.quotas.is_replica_Q.sum() > 2
    return plan


def _faults(plan, load_MLE=None):
    with pytest.raises(InvalidPlan, match="the plan is not valid: ") as caught:
        check_plan(plan, load_MLE)
    return str(caught.value).removeprefix("the plan is not valid: ").split("; ")


def _changed(array, at, value):
    changed = array.copy()
    changed[at] = value
    return changed


def _with_replica(plan, index4, tokens=0):
    """Insert a replica in order."""
    index_Y4 = np.concatenate([plan.replica_index_Y4, np.array([index4], dtype=np.int32)])
    order_Y = np.lexsort(index_Y4.T[::-1])
    tokens_Y = np.append(plan.replica_tokens_Y, tokens)
    return replace(plan, replica_index_Y4=index_Y4[order_Y], replica_tokens_Y=tokens_Y[order_Y])


def test_S2_a_solved_plan_is_valid(plan, problem):
    check_plan(plan, problem.load_MLE)


def _at_home(plan):
    _, layer, expert, _ = plan.replica_index_Y4[0]
    index_Y4 = _changed(plan.replica_index_Y4, (0, 3), plan.home_rank_LE[layer, expert])[:1]
    return replace(plan, replica_index_Y4=index_Y4)


def _on_another_node(plan):
    roomy = replace(plan, cluster=replace(plan.cluster, redundant_slots=8))
    return _with_replica(roomy, (0, 0, 0, 3 if plan.home_rank_LE[0, 0] < 2 else 0))


def _crowded(plan):
    expert = int(np.flatnonzero(plan.home_rank_LE[1] != 0)[0])
    return replace(plan, home_rank_LE=_changed(plan.home_rank_LE, (1, expert), 0))


def _set(field, at, value):
    return lambda plan: replace(plan, **{field: _changed(getattr(plan, field), at, value)})


def _cut(field, part):
    return lambda plan: replace(plan, **{field: getattr(plan, field)[part]})


_ORDER = "replicas are not sorted and unique by (row, layer, expert, rank)"
_BROKEN = {
    "home_rank of another shape": (_cut("home_rank_LE", slice(1)), "home_rank has shape (1, 8), expected (2, 8)"),
    "a home below 0": (_set("home_rank_LE", (0, 0), -1), "home_rank has values outside 0 to 3"),
    "a home beyond": (_set("home_rank_LE", (0, 0), 4), "home_rank has values outside 0 to 3"),
    "too many experts": (_crowded, "layer 1: rank 0 is home to 3 experts, expected 2"),
    "replicas of another shape": (
        _cut("replica_index_Y4", np.s_[:, :3]),
        "the replicas have shape ({num}, 3), expected [Y, 4]",
    ),
    "row": (_set("replica_index_Y4", (-1, 0), 3), "a replica names a row outside 0 to 2"),
    "layer": (_set("replica_index_Y4", (-1, 1), 2), "a replica names a layer outside 0 to 1"),
    "expert": (_set("replica_index_Y4", (-1, 2), 8), "a replica names a expert outside 0 to 7"),
    "rank": (_set("replica_index_Y4", (-1, 3), 4), "a replica names a rank outside 0 to 3"),
    "out of order": (_cut("replica_index_Y4", np.s_[::-1]), _ORDER),
    "listed twice": (lambda plan: _with_replica(plan, plan.replica_index_Y4[0]), _ORDER),
    "at home": (_at_home, "a replica is on its own home rank"),
    "counts missing": (_cut("replica_tokens_Y", np.s_[:-1]), "replica tokens have shape ({less},), expected ({num},)"),
    "negative tokens": (_set("replica_tokens_Y", 0, -1), "a number of tokens is negative"),
    "negative load": (_set("load_MLE", (0, 0, 0), -1), "a number of tokens is negative"),
    "more than there is": (
        _set("replica_tokens_Y", 0, 10**9),
        "the replicas of an expert take more tokens than it has",
    ),
    "bound of another shape": (_cut("lower_bound_ML", slice(1)), "lower_bound has shape (1, 2), expected (3, 2)"),
    "below its bound": (
        _set("lower_bound_ML", (0, 0), 1e12),
        "the slowest rank of a cell is below the cell's lower bound",
    ),
    "on another node": (_on_another_node, "a replica is not on the node of its home"),
    "more replicas than slots": (
        lambda plan: replace(plan, cluster=replace(plan.cluster, redundant_slots=0)),
        "a rank holds 1 replicas in 0 redundant slots",
    ),
}


@pytest.mark.parametrize("name", _BROKEN)
def test_S2_a_plan_with_one_fault_is_refused_by_its_name(plan, name):
    breaking, fault = _BROKEN[name]
    num = len(plan.replica_tokens_Y)
    assert _faults(breaking(plan)) == [fault.format(num=num, less=num - 1)]


def test_S2_a_plan_for_another_load(plan, problem):
    assert _faults(plan, _changed(problem.load_MLE, (0, 0, 0), 10**6)) == [
        "the plan was made for another load of 1 (row, layer, expert)"
    ]
    assert _faults(plan, problem.load_MLE[:1]) == ["the load has shape (1, 2, 8), expected (3, 2, 8)"]
    assert _faults(replace(plan, load_MLE=plan.load_MLE[:1])) == ["the load has shape (1, 2, 8), expected (3, 2, 8)"]


def test_S2_a_placement_alone(plan):
    check_placement(plan.home_rank_LE, plan.model, plan.cluster)
    with pytest.raises(InvalidPlan, match="rank 0 is home to 8 experts"):
        check_placement(np.zeros_like(plan.home_rank_LE), plan.model, plan.cluster)


def _step_faults(step_plan, plan):
    with pytest.raises(InvalidPlan) as caught:
        check_step_plan(step_plan, plan.model, plan.cluster)
    return str(caught.value).removeprefix("the plan is not valid: ").split("; ")


def test_S2_what_ranks_execute_is_checked_like_the_plan(plan):
    step_plan = StepPlan.of(plan, id=PlanId(epoch=1, version=1), step=0)
    check_step_plan(step_plan, plan.model, plan.cluster)
    for num_rows in (2, 4):
        count_ML = np.zeros((num_rows, 2), np.uint8)
        count_ML[0, 0] = len(step_plan.replicas.rank_Y)
        broken = replace(step_plan, replicas=replace(step_plan.replicas, count_ML=count_ML))
        assert _step_faults(broken, plan) == [f"the cells of replicas have shape ({num_rows}, 2), expected (3, 2)"]
    broken = replace(step_plan, home_rank_LE=step_plan.home_rank_LE[:1])
    assert _step_faults(broken, plan) == ["home_rank has shape (1, 8), expected (2, 8)"]


MODEL = Model(num_layers=2, num_experts=8, top_k=1)
NUM_ROWS = 3


@st.composite
def listed_replicas(draw):
    """Return homes `[L, E]` and a list of replicas for them, which up to one odd entry or swap may spoil."""
    home_LE = np.array([draw(st.permutations([0, 0, 1, 1, 2, 2, 3, 3])) for _ in range(2)], dtype=np.int32)
    cells = st.tuples(st.integers(0, NUM_ROWS - 1), st.integers(0, 1))
    good = st.tuples(cells, st.integers(0, 7)).map(lambda of: (*of[0], of[1], int(home_LE[of[0][1], of[1]]) ^ 1))
    odd = st.tuples(cells, st.integers(-1, 8), st.integers(-1, 4)).map(lambda of: (*of[0], *of[1:]))
    index = sorted([*draw(st.sets(good, max_size=12)), *draw(st.lists(odd, max_size=1))])
    place = draw(st.integers(0, 20))
    if place + 1 < len(index) and index[place][:2] == index[place + 1][:2]:
        index[place : place + 2] = draw(st.sampled_from([index[place : place + 2][::-1], index[place : place + 1] * 2]))
    return home_LE, index


def _is_valid(home_LE, index, num_slots):
    if not all(0 <= expert < 8 and 0 <= rank < 4 for _, _, expert, rank in index):
        return False
    of_rank = Counter((row, layer, rank) for row, layer, _, rank in index)
    return (
        all(before < after for before, after in pairwise(index))
        and all(home_LE[layer, expert] == rank ^ 1 for _, layer, expert, rank in index)  # the other rank of the node
        and max(of_rank.values(), default=0) <= num_slots
    )


@given(listed_replicas(), st.integers(1, 2), st.integers(1, 16), st.sampled_from([np.int8, np.int32, np.int64]))
def test_S2_what_is_not_valid_is_refused_however_many_are_checked_at_once(listed, num_slots, at_once, dtype):
    home_LE, index = listed
    cluster = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=num_slots)
    replicas = Replicas.of(np.array(index, dtype).reshape(-1, 4), NUM_ROWS, 2)
    plan = StepPlan(
        id=PlanId(epoch=1, version=1),
        step=0,
        digest=b"",
        home_rank_LE=home_LE,
        replicas=replicas,
        num_micro_batches=NUM_ROWS,
        reason="",
    )
    is_refused = nullcontext() if _is_valid(home_LE, index, num_slots) else pytest.raises(InvalidPlan)
    with mock.patch.object(check, "_AT_ONCE", at_once), is_refused:
        check_step_plan(plan, MODEL, cluster)
