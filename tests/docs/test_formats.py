"""The Python of docs/formats.md runs as it stands, except for addresses and the model's file."""

import json
from types import SimpleNamespace

import pytest

from harness.doc_blocks import python_of
from harness.engine_payloads import all_layers, routes, vllm
from harness.services import Service
from relibra.errors import NotFound
from relibra.planning import Cluster, Model, Schedule
from relibra.routing import ModelLayers
from relibra.wire.client import PlannerClient

LAYERS = ModelLayers.uniform(num_layers=2, num_experts=128, top_k=2)
CONFIG = {"num_hidden_layers": 2, "num_experts": 128, "num_experts_per_tok": 2}
(WORKER,) = python_of("docs/formats.md")


def test_engines_report_what_they_answer(shared_planner: Service, tmp_path, monkeypatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    completion = SimpleNamespace(
        index=0, token_ids=[7] * 6, routed_experts=all_layers(routes(0, 8, LAYERS), LAYERS, "int32")
    )
    output = SimpleNamespace(request_id="seq-0", prompt_token_ids=[7] * 3, outputs=[completion], finished=True)
    body = {
        "choices": [{"routed_experts": vllm(routes(1, 8, LAYERS), LAYERS)}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 6},
    }
    names = {
        "step": 0,
        "llm": SimpleNamespace(generate=lambda prompts, sampling_params: [output]),
        "prompts": [],
        "sampling_params": None,
        "http_response": SimpleNamespace(content=json.dumps(body).encode()),
    }
    model, cluster = (
        Model(num_layers=2, num_experts=128, top_k=2),
        Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=1),
    )
    with PlannerClient(shared_planner.address) as client:
        client.register_job("page-formats", model, cluster)
        worker = WORKER.replace("planner:7420", shared_planner.address).replace("my-job", "page-formats")
        exec(worker, names)
        reported = ["seq-0/0", "seq-1/0"]
        with pytest.raises(NotFound, match=r"1 of 3 .* 'seq-2'"):
            client.submit_schedule("page-formats", 0, [*reported, "seq-2"], Schedule.round_robin(3, 1, cluster))
        client.submit_schedule("page-formats", 0, reported, Schedule.round_robin(2, 1, cluster))
