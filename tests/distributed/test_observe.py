"""Jobs that only observe: their pages show what balancing would gain, and nothing of their training changes."""

import pytest

from harness.distributed.layout import EP2_PP2, EP4, NODE
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    import os
    from types import SimpleNamespace
    from unittest import mock

    import numpy as np
    import torch
    import torch.distributed as dist
    from fastapi.testclient import TestClient
    from torch import nn

    from harness.distributed.gpt_job import GptJob
    from harness.distributed.networks import MODEL, TOKENS, Trained, routing
    from harness.distributed.observed import equal
    from harness.distributed.real_planner import real_planner
    from harness.doc_blocks import python_of
    from harness.services import Loop, eventually
    from relibra.evaluation.ways import compare_ways
    from relibra.planning import Cause
    from relibra.plugins.observed_job import observe_megatron
    from relibra.plugins.settings import PluginSettings
    from relibra.routing import ModelLayers
    from relibra.status.app import create_app
    from relibra.status.settings import StatusSettings
    from relibra.store import Store

    class Layer(nn.Module):
        """A MoE layer of no framework: a gate whose output is scores and ids."""

        def __init__(self):
            super().__init__()
            self.router = Router()
            self.experts = nn.Parameter(torch.rand(64))

        def forward(self, hidden):
            scores, ids = self.router(hidden)
            return hidden * (scores * self.experts[ids]).sum(dim=-1, keepdim=True)

    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(8, 64, bias=False)

        def forward(self, hidden):
            return self.gate(hidden).softmax(dim=-1).topk(8, dim=-1)


NUM_STEPS, M = 4, 3


def executed(redis_url, job_id, step):
    """Return what ranks reported of a step, once all have."""
    with Loop() as run:
        store = Store.open(redis_url)
        job = run(store.get_job(job_id))
        phases = run(store.get_executions(job, [step]))[0]
        run(store.close())
    return phases


def is_reported(redis_url, job_id, step):
    try:
        return bool(executed(redis_url, job_id, step))
    except Exception:  # the job is not registered yet
        return False


def is_planned(redis_url, step):
    with Loop() as run:
        store = Store.open(redis_url)
        planned = run(store.get_step(run(store.get_job("watched")), step)).plan is not None
        run(store.close())
    return planned


@on_ranks(NODE, EP4)
def test_a_plain_torch_router_is_observed_by_one_call_and_the_page_says_what_balancing_would_gain(cluster):
    (example,) = python_of("docs/integrations/observe.md")
    torch.manual_seed(dist.get_rank())
    layers = nn.ModuleList(Layer() for _ in range(MODEL.num_layers))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    with real_planner() as (address, redis_url):
        names = {"model": SimpleNamespace(layers=layers), "ep_group": dist.group.WORLD, "optimizer": optimizer}
        with mock.patch.dict(os.environ, RELIBRA_PLANNER=address, RELIBRA_JOB="watched"):
            exec(example, names)
        observer = names["observer"]
        for step in range(NUM_STEPS):
            if redis_url and step:  # a real step is long enough for the plan from the steps before
                eventually(lambda step=step: is_planned(redis_url, step), within_s=120)
            dist.barrier()
            for _ in range(M):
                hidden = torch.rand(20, 8)
                for layer in layers:
                    hidden = layer(hidden)
                hidden.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        if redis_url:
            eventually(lambda: is_reported(redis_url, "watched", NUM_STEPS - 1), within_s=120)
            (phase,) = executed(redis_url, "watched", NUM_STEPS - 1)
            assert phase.intended == {Cause.OBSERVING: cluster.num_ranks}
            assert phase.num_fallbacks == 0
            assert phase.imbalance == phase.imbalance_plain > 1.0
            assert phase.overload_plain >= phase.imbalance_plain
            assert phase.num_token_copies == cluster.num_ranks * M * MODEL.num_layers * 20 * 8
            with TestClient(
                create_app(
                    Store.open(redis_url),
                    StatusSettings(redis_url=redis_url, allowed_hosts="testserver"),
                    compare_ways,
                )
            ) as http:
                page = http.get("/jobs/watched", headers={"accept": "text/html"}).text
                metrics = http.get("/metrics").text
            said = page[page.index("The job only observes.") :].split("</p>")[0]
            assert f"imbalance was {phase.imbalance_plain:.3f}" in said
            for way in ("EPLB", "UltraEP", "relibra"):
                assert way in said, said
            assert "the job registered no cost model" in page, "ranks without GPUs have no prices"
            assert "unbalanced" not in page
            assert 'relibra_plain_overload_factor{job_id="watched",phase="update"}' in metrics
            assert (
                f'relibra_intended_ranks{{cause="observing",job_id="watched",phase="update"}} {cluster.num_ranks}.0'
                in metrics
            )
        observer.close()
    dist.barrier()


@on_ranks(EP4)
def test_S5_an_observed_model_of_megatron_trains_exports_and_checkpoints_as_without_relibra(cluster):
    plain, observed = Trained(cluster), Trained(cluster)
    before = set(vars(observed.network.moe[0])), set(vars(observed.network.moe[0].experts)), set(vars(observed.ddp))
    layers = ModelLayers.uniform(num_layers=MODEL.num_layers, num_experts=MODEL.num_experts, top_k=MODEL.top_k)
    with real_planner() as (address, redis_url):
        settings = PluginSettings(planner=address, job="megatron")
        observer = observe_megatron(settings, layers, observed.ddp, observed.optimizer)
        after = set(vars(observed.network.moe[0])), set(vars(observed.network.moe[0].experts)), set(vars(observed.ddp))
        assert after == before, "nothing is wrapped"
        for step in range(2):
            want, got = plain.step(step, M), observed.step(step, M)
            assert want["loss"] == got["loss"]
        assert equal(observed.weights(), plain.weights())
        assert equal(observed.moments(), plain.moments())
        assert list(observed.ddp.state_dict()) == list(plain.ddp.state_dict())
        observer.close()
        if redis_url:
            eventually(lambda: is_reported(redis_url, "megatron", 1), within_s=120)
            (phase,) = executed(redis_url, "megatron", 1)
            chosen = torch.stack(
                [torch.stack([routing(1, m, rank) for rank in range(cluster.num_ranks)]) for m in range(M)]
            )
            load_MLE = np.stack(
                [
                    [
                        np.bincount(chosen[m, :, layer].flatten(), minlength=MODEL.num_experts)
                        for layer in range(MODEL.num_layers)
                    ]
                    for m in range(M)
                ]
            )
            load_MLR = load_MLE.reshape(M, MODEL.num_layers, cluster.num_ranks, -1).sum(axis=-1)
            assert phase.imbalance == load_MLR.max(axis=-1).sum() * cluster.num_ranks / load_MLR.sum()
            assert phase.num_token_copies == cluster.num_ranks * M * MODEL.num_layers * TOKENS * MODEL.top_k
            assert phase.duration_s > 0
    dist.barrier()


@pytest.mark.long
@on_ranks(EP2_PP2)
def test_every_pipeline_stage_reports_its_own_layers(cluster):
    job = GptJob(cluster)
    job.replay_without_agent()
    with real_planner() as (address, redis_url):
        layers = ModelLayers.uniform(num_layers=3, num_experts=job.model.num_experts, top_k=job.model.top_k)
        observer = observe_megatron(PluginSettings(planner=address, job="stages"), layers, job.chunks, job.optimizer)
        job.step(0, M)
        observer.close()
        if redis_url:
            eventually(lambda: is_reported(redis_url, "stages", 0), within_s=120)
            (phase,) = executed(redis_url, "stages", 0)
            assert phase.num_expected == dist.get_world_size()
            assert phase.imbalance > 1.0
            assert phase.num_token_copies == 2 * 3 * M * 16 * job.model.top_k, "two data-parallel ranks, three layers"
    dist.barrier()
