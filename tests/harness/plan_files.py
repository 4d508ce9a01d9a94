"""Reads a plan file as its documentation describes it, the way that another program would."""

import io
import json

import numpy as np

from relibra.planning import Cluster, Model, Plan, PlanParams, Schedule, SourceShares
from relibra.planning.plan import Prediction


def read_plan_file(content: bytes) -> Plan:
    """Return the plan in a file. The digest that the file names must be that of the plan."""
    with np.load(io.BytesIO(content)) as file:
        arrays = dict(file)
    meta = json.loads(str(arrays["meta"]))
    plan = Plan(
        model=Model(**meta["model"]),
        cluster=Cluster(**meta["cluster"]),
        params=PlanParams(**meta["params"]),
        schedule=Schedule(
            micro_batch_S=arrays["micro_batch"], source_rank_S=arrays["source_rank"], ep_group_S=arrays["ep_group"]
        ),
        home_rank_LE=arrays["home_rank"],
        quota_index_Q4=arrays["quota_index"],
        quota_tokens_Q=arrays["quota_tokens"],
        shares=SourceShares.stored(arrays["replica_share"]),
        lower_bound_ML=arrays["lower_bound"],
        prediction=Prediction(**meta["prediction"]),
        reason=meta["reason"],
        repacked="repacked" in arrays,
    )
    assert meta["digest"] == plan.digest.hex()
    return plan
