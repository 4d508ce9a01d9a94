import dataclasses
import re
import urllib.request
from pathlib import Path

import pytest

from harness.services import CLUSTER, MODEL, PARAMS, Loop, Service, routed_experts
from relibra.errors import Conflict, InvalidInput, LimitExceeded, StaleEpoch
from relibra.planning import Cluster
from relibra.rollout import RolloutReporter
from relibra.store import Refused, Store
from relibra.wire.client import PlannerClient


def test_S3_registering_again_gives_the_same_epoch_and_other_content_is_refused(
    client: PlannerClient, job_id: str
) -> None:
    epoch = client.register_job(job_id, MODEL, CLUSTER, PARAMS)
    assert epoch > 0
    assert client.register_job(job_id, MODEL, CLUSTER, PARAMS) == epoch
    with pytest.raises(Conflict, match="another model"):
        client.register_job(job_id, dataclasses.replace(MODEL, top_k=1), CLUSTER, PARAMS)
    assert client.register_job(job_id, MODEL, CLUSTER, PARAMS) == epoch, "the refused call changed nothing"


def test_ranks_that_do_not_divide_the_experts_are_refused(client: PlannerClient) -> None:
    cluster = Cluster(num_nodes=1, gpus_per_node=3, redundant_slots=0)
    with pytest.raises(InvalidInput, match=r"model.num_experts: expected a multiple of the 3 EP ranks .* got 8"):
        client.register_job("indivisible", MODEL, cluster)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a{b}"])
def test_S6_names_that_could_be_mistaken_are_refused(client: PlannerClient, name: str) -> None:
    with pytest.raises(InvalidInput, match="job_id"):
        client.register_job(name, MODEL, CLUSTER)


def test_S7_a_model_too_large_for_a_message_is_refused(client: PlannerClient) -> None:
    model = dataclasses.replace(MODEL, num_layers=1 << 20, num_experts=1 << 10)
    with pytest.raises(LimitExceeded, match="a message holds"):
        client.register_job("huge", model, CLUSTER)


def test_S9_an_older_launch_is_counted_by_cause_and_kept_for_the_page(
    redis_url: str, tmp_path: Path, store: Store, run: Loop
) -> None:
    planner = Service("planner", redis_url, tmp_path, RELIBRA_METRICS_PORT="0", COLUMNS="400")

    def refused(name: str, labels: str) -> float:
        (url,) = re.findall(r"metrics on (\S+)", planner.log())
        shown = urllib.request.urlopen(url, timeout=60).read().decode()
        values = re.findall(rf"^{name}{{{labels}}} (\S+)$", shown, re.M)
        return float(values[0]) if values else 0.0

    try:
        with (
            PlannerClient(planner.address, attempt="one") as first,
            PlannerClient(planner.address, attempt="one") as late,
            PlannerClient(planner.address, attempt="two") as second,
            RolloutReporter(planner.address, "job", num_experts=MODEL.num_experts, attempt="one") as worker,
        ):
            first.register_job("job", MODEL, CLUSTER, PARAMS)
            second.register_job("job", MODEL, CLUSTER, PARAMS)
            assert run(store.get_refusals(run(store.get_job("job")))) == []
            worker.report(1, "seq", routed_experts(0, 5))
            with pytest.raises(StaleEpoch):
                worker.flush()
            with pytest.raises(StaleEpoch):
                late.fetch_plan("job", 1, MODEL)
            for _ in range(2):
                with pytest.raises(StaleEpoch, match="attempt 1 of job 'job' is over: attempt 2 began"):
                    first.register_job("job", MODEL, CLUSTER, PARAMS)
            assert refused("relibra_planner_refused_total", 'error="StaleEpoch",method="RegisterJob"') == 2
            (refusal,) = run(store.get_refusals(run(store.get_job("job"))))
            assert (refusal.what, refusal.error) == (Refused.LAUNCH, "StaleEpoch")
            assert refusal.text.startswith("an older launch still calls: attempt 1 of job 'job' is over")
    finally:
        planner.stop()


def test_L5_a_rollback_begins_an_attempt_of_the_same_launch(client: PlannerClient, job_id: str) -> None:
    epoch = client.register_job(job_id, MODEL, CLUSTER, PARAMS)
    again = client.rollback(job_id, 7)
    assert again > epoch
    assert client.register_job(job_id, MODEL, CLUSTER, PARAMS) == again


def test_a_rollback_names_the_attempt_that_goes_back(
    client: PlannerClient, shared_planner: Service, job_id: str
) -> None:
    client.register_job(job_id, MODEL, CLUSTER, PARAMS)
    with (
        PlannerClient(shared_planner.address) as stranger,
        pytest.raises(InvalidInput, match="epoch: expected the attempt of the caller"),
    ):
        stranger.rollback(job_id, 1)
    with pytest.raises(InvalidInput, match="step: expected at most"):
        client.rollback(job_id, 1 << 63)


def test_the_launch_that_registered_a_job_ends_it(client: PlannerClient, shared_planner: Service, job_id: str) -> None:
    client.register_job(job_id, MODEL, CLUSTER, PARAMS)
    client.end_attempt(job_id)
    with PlannerClient(shared_planner.address, attempt="another") as later:
        later.register_job(job_id, MODEL, CLUSTER, PARAMS)
        with pytest.raises(StaleEpoch, match="attempt 1 of job"):
            client.end_attempt(job_id)
        later.end_attempt(job_id)
