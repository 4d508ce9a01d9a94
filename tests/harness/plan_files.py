"""Reads a plan file as its documentation describes it, the way that another program would."""

import io
import json

import numpy as np

from relibra.planning import Cluster, Model, Plan, PlanParams, Schedule
from relibra.planning.plan import Prediction


def read_plan_file(content: bytes) -> Plan:
    """Return the plan in a file. The digest that the file names must be that of the plan."""
    with np.load(io.BytesIO(content)) as file:
        arrays = dict(file)
    meta = json.loads(str(arrays["meta"]))
    row_Q, layer_Q, expert_Q, _ = arrays["quota_index"].T
    load_MLE = np.zeros((*arrays["lower_bound"].shape, arrays["home_rank"].shape[1]), dtype=np.int64)
    np.add.at(load_MLE, (row_Q, layer_Q, expert_Q), arrays["quota_tokens"])
    tokens = dict(zip(map(tuple, arrays["quota_index"].tolist()), arrays["quota_tokens"].tolist(), strict=True))
    replicas = map(tuple, arrays["replica_index"].tolist())
    plan = Plan(
        model=Model(**meta["model"]),
        cluster=Cluster(**meta["cluster"]),
        params=PlanParams(**meta["params"]),
        schedule=Schedule(
            micro_batch_S=arrays["micro_batch"], source_rank_S=arrays["source_rank"], ep_group_S=arrays["ep_group"]
        ),
        home_rank_LE=arrays["home_rank"],
        replica_index_Y4=arrays["replica_index"],
        load_MLE=load_MLE,
        replica_tokens_Y=np.array([tokens.get(index, 0) for index in replicas], dtype=np.int64),
        lower_bound_ML=arrays["lower_bound"],
        prediction=Prediction(**meta["prediction"]),
        reason=meta["reason"],
        repacked="repacked" in arrays,
    )
    assert meta["digest"] == plan.digest.hex()
    return plan
