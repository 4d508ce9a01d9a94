from pathlib import Path
from typing import Any

import pytest

from relibra.errors import InvalidInput, Unsupported
from relibra.planner.limits.admission import Admission
from relibra.planner.limits.solve_size import check_schedule
from relibra.planner.settings import PlannerSettings
from relibra.planning import Cluster, CostModel, Model, PlanParams, Schedule
from relibra.store import JobRecord, StoreLimits

URL = "redis://redis:6379/0"


@pytest.mark.parametrize(
    "files", [{"tls_cert_file": Path("c")}, {"tls_key_file": Path("k")}, {"tls_client_ca_file": Path("ca")}]
)
def test_half_of_tls_is_refused(files: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match=r"TLS|tls_cert_file"):
        PlannerSettings.load(redis_url=URL, **files)


def test_limits_of_the_store_are_those_that_were_set() -> None:
    limits = PlannerSettings.load(redis_url=URL, max_open_steps=3, max_step_size_bytes=7).store_limits
    assert (limits.max_open_steps, limits.max_step_size_bytes) == (3, 7)


@pytest.mark.parametrize("params", [PlanParams(), PlanParams(cost=CostModel(token_size_bytes=28_672))])
def test_S7_the_defaults_serve_a_large_job_of_many_sequences(params: PlanParams) -> None:
    """512 data ranks x 128 micro-batches, a sequence in each: 58 layers x 256 experts, 8 EP groups of 64 ranks."""
    model = Model(num_layers=58, num_experts=256, top_k=8)
    cluster = Cluster(num_nodes=8, gpus_per_node=8, redundant_slots=2, num_ep_groups=8)
    settings = PlannerSettings.load(redis_url=URL)
    admission, num_sequences = Admission(settings), 512 * 128
    job = JobRecord(job_id="large", epoch=1, began_at=0.0, model=model, cluster=cluster, params=params)
    admission.check_num_sequences(num_sequences)
    check_schedule(admission, job, Schedule.round_robin(num_sequences, 128, cluster))
    # A sequence has up to 65535 token copies of an expert, and takes the next size of Redis' allocator.
    sequences_bytes = num_sequences * ((32 << 10) + 100)
    reports_bytes = 2 * 512 * ((64 << 10) + (16 << 10) + 1024)
    assert sequences_bytes + reports_bytes <= settings.max_step_size_bytes
    assert reports_bytes <= settings.max_reports_size_bytes
    assert settings.max_step_size_bytes <= settings.retained_bytes, "each step would drop all before it"
    assert StoreLimits() == settings.store_limits


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("red", '"max_jobs_by_prefix".*: expected JSON there'),
        ('{"red-": -1}', r"max_jobs_by_prefix\.red-: .* equal to 0"),
    ],
)
def test_a_quota_that_cannot_be_read_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    monkeypatch.setenv("RELIBRA_MAX_JOBS_BY_PREFIX", text)
    with pytest.raises(InvalidInput, match=words):
        PlannerSettings.load(redis_url=URL)
