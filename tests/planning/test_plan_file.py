import io
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.plan_files import read_plan_file
from relibra.planning import check_plan
from relibra.planning.plan_file import plan_chunks, plan_to_bytes


@pytest.fixture(scope="module")
def plan(random_problem):
    return random_problem.random(0, num_ep_groups=2).solve()


@pytest.fixture(scope="module")
def content(plan):
    return plan_to_bytes(plan)


def _arrays(content):
    with np.load(io.BytesIO(content)) as file:
        return dict(file)


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_S8_a_plan_survives_its_file_unchanged(problems, data):
    problem = data.draw(problems)
    plan = problem.solve()
    content = plan_to_bytes(plan)
    back = read_plan_file(content)
    check_plan(back, problem.load_MLE)
    assert back.digest == plan.digest
    assert (back.model, back.cluster, back.params, back.prediction, back.reason) == (
        plan.model,
        plan.cluster,
        plan.params,
        plan.prediction,
        plan.reason,
    )
    assert plan_to_bytes(back) == content


def test_the_file_has_the_keys_and_types_others_read(content, plan):
    arrays = _arrays(content)
    num_quotas = len(plan.quotas.tokens_Q)
    found = {key: (str(value.dtype), value.shape) for key, value in arrays.items() if key != "meta"}
    assert found == {
        "home_rank": ("int32", (2, 8)),
        "micro_batch": ("int32", (12,)),
        "source_rank": ("int32", (12,)),
        "ep_group": ("int32", (12,)),
        "quota_index": ("int32", (num_quotas, 4)),
        "quota_tokens": ("int64", (num_quotas,)),
        "replica_index": ("int32", (len(plan.replica_index_Y4), 4)),
        "lower_bound": ("float64", (plan.num_rows, 2)),
    }
    assert plan.digest.hex() in str(arrays["meta"])


def test_the_file_comes_in_pieces_with_the_digest_that_was_passed(content, plan):
    pieces = list(plan_chunks(plan, plan.digest))
    assert b"".join(pieces) == content
    assert sum(map(bool, pieces)) > 3
    other = _arrays(b"".join(plan_chunks(plan, bytes(32))))
    assert json.loads(str(other["meta"]))["digest"] == "00" * 32


def test_a_repacked_plan_says_so(plan):
    content = plan_to_bytes(replace(plan, repacked=True))
    assert _arrays(content)["repacked"]
    assert read_plan_file(content).repacked
