import dataclasses

import pytest

from harness.services import CLUSTER, MODEL, PARAMS, eventually
from relibra.errors import Conflict, InvalidInput, LimitExceeded
from relibra.planning import Cluster
from relibra.wire.client import PlannerClient


def test_S3_registering_again_gives_the_same_epoch_and_other_content_is_refused(
    client: PlannerClient, job_id: str
) -> None:
    epoch = client.register_job(job_id, MODEL, CLUSTER, PARAMS)
    assert epoch > 0
    assert client.register_job(job_id, MODEL, CLUSTER, PARAMS) == epoch
    with pytest.raises(Conflict, match="another model"):
        client.register_job(job_id, dataclasses.replace(MODEL, top_k=1), CLUSTER, PARAMS)
    eventually(lambda: client.register_job(job_id, MODEL, CLUSTER, PARAMS) == epoch)


def test_ranks_that_do_not_divide_the_experts_are_refused(client: PlannerClient) -> None:
    cluster = Cluster(num_nodes=1, gpus_per_node=3, redundant_slots=0)
    with pytest.raises(InvalidInput, match=r"model.num_experts: expected a multiple of the 3 EP ranks .* got 8"):
        client.register_job("indivisible", MODEL, cluster)


@pytest.mark.parametrize("name", ["", "Upper", "a/b", "a{b}"])
def test_S6_names_that_could_be_mistaken_are_refused(client: PlannerClient, name: str) -> None:
    with pytest.raises(InvalidInput, match="job_id"):
        client.register_job(name, MODEL, CLUSTER)


def test_S7_a_model_too_large_for_a_message_is_refused(client: PlannerClient) -> None:
    model = dataclasses.replace(MODEL, num_layers=1 << 20, num_experts=1 << 10)
    with pytest.raises(LimitExceeded, match="a message holds"):
        client.register_job("huge", model, CLUSTER)
