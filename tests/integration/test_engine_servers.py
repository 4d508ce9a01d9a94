"""From inference servers over HTTP to a plan: real sockets, the engines' exact encodings, a real planner."""

import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI

from harness.engine_payloads import count, nemo_rl, routes, sglang, skyrl, vllm
from harness.services import CLUSTER, MODEL, PARAMS, Service, eventually
from relibra.planning import Schedule, StepLoad, check_step_plan
from relibra.planning.load import home_loads, imbalance
from relibra.planning.solve import solve
from relibra.rollout import RolloutReporter
from relibra.routing import ModelLayers, decode_response
from relibra.wire.client import PlannerClient

pytestmark = pytest.mark.integration

LAYERS = ModelLayers(num_experts=MODEL.num_experts, top_k=MODEL.top_k, is_moe=(False, True, True, True))
NUM_SEQUENCES = 8
PROMPT_TOKENS = 4


def recorded(index: int) -> np.ndarray:
    """Return the expert ids `[T, L, K]` that the model routed for prompt `index`."""
    return routes(index, 12 + 5 * index, LAYERS)


def usage(rows_TLK: np.ndarray) -> dict[str, int]:
    return {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": len(rows_TLK) + 1 - PROMPT_TOKENS}


def engine_server() -> FastAPI:
    """The endpoints of vLLM, SGLang, NeMo-RL and SkyRL, serving recorded routing."""
    app = FastAPI()

    def openai(index: int, **choice: Any) -> dict[str, Any]:
        return {"id": f"cmpl-{index}", "choices": [{"index": 0, "finish_reason": "stop", **choice}]}

    @app.post("/vllm/v1/completions")
    def vllm_completions(body: dict[str, Any]) -> dict[str, Any]:
        rows = recorded(body["prompt"])
        return openai(body["prompt"], text="", routed_experts=vllm(rows, LAYERS)) | {"usage": usage(rows)}

    @app.post("/vllm/v1/chat/completions")
    def vllm_chat(body: dict[str, Any]) -> dict[str, Any]:
        rows = recorded(body["prompt"])
        answer = openai(body["prompt"], message={"role": "assistant"}, routed_experts=vllm(rows, LAYERS))
        answer["choices"][0]["token_ids"] = [0] * usage(rows)["completion_tokens"]
        return answer | {"prompt_token_ids": [0] * PROMPT_TOKENS}

    @app.post("/sglang/generate")
    def sglang_generate(body: dict[str, Any]) -> dict[str, Any]:
        assert body["return_routed_experts"]
        rows = recorded(body["prompt"])
        return {"text": "", "meta_info": {"id": "x", "routed_experts": sglang(rows, LAYERS)} | usage(rows)}

    @app.post("/sglang/v1/completions")
    def sglang_openai(body: dict[str, Any]) -> dict[str, Any]:
        rows = recorded(body["prompt"])
        extension = {"sglext": {"routed_experts": sglang(rows, LAYERS)}}
        return openai(body["prompt"], text="") | extension | {"usage": usage(rows)}

    @app.post("/nemo-rl/v1/chat/completions")
    def nemo_chat(body: dict[str, Any]) -> dict[str, Any]:
        rows = recorded(body["prompt"])
        return openai(body["prompt"], message={"routed_experts": nemo_rl(rows, LAYERS)}) | {"usage": usage(rows)}

    @app.post("/skyrl/v1/generate")
    def skyrl_generate(body: dict[str, Any]) -> dict[str, Any]:
        rows = recorded(body["prompt"])
        return {
            "choices": [{"token_ids": [0] * usage(rows)["completion_tokens"], "routed_experts": skyrl(rows, LAYERS)}]
        }

    return app


@pytest.fixture(scope="module")
def engines() -> Iterator[str]:
    """The URL of an engine server on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(engine_server(), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        eventually(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def ask(url: str, index: int) -> bytes:
    body = json.dumps({"prompt": index, "return_routed_experts": True}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return bytes(response.read())


@pytest.mark.parametrize(
    "endpoint",
    [
        "vllm/v1/completions",
        "vllm/v1/chat/completions",
        "sglang/generate",
        "sglang/v1/completions",
        "nemo-rl/v1/chat/completions",
        "skyrl/v1/generate",
    ],
)
def test_S8_what_a_server_answers_becomes_the_plan_of_its_recorded_routing(
    engines: str, shared_planner: Service, endpoint: str
) -> None:
    job_id = endpoint.replace("/", "-")
    schedule = Schedule.round_robin(NUM_SEQUENCES, 2, CLUSTER)
    with PlannerClient(shared_planner.address) as client:
        client.register_job(job_id, MODEL, CLUSTER, PARAMS)
        with RolloutReporter(shared_planner.address, job_id, num_experts=MODEL.num_experts) as reporter:
            names = [f"seq-{index}" for index in range(NUM_SEQUENCES)]
            for index, name in enumerate(names):
                (routing,) = decode_response(ask(f"{engines}/{endpoint}", index), LAYERS)
                reporter.report(3, name, routing)
            assert reporter.flush() == NUM_SEQUENCES
        client.submit_schedule(job_id, 3, names, schedule)
        plans = [client.fetch_plan(job_id, 3, MODEL, wait_s=60) for rank in range(CLUSTER.num_ranks)]
    for plan in plans:
        check_step_plan(plan, MODEL, CLUSTER)
    # The expected plan is made here from the routing itself: equal loads give equal plans.
    load = StepLoad.of(np.stack([count(recorded(index), LAYERS) for index in range(NUM_SEQUENCES)]), schedule, CLUSTER)
    expected = solve(load, schedule, MODEL, CLUSTER, PARAMS)
    assert plans[0].digest == expected.digest
    plain = home_loads(load.load_MLE, CLUSTER.identity_placement(MODEL), CLUSTER.num_ranks)
    assert expected.prediction.imbalance_after < imbalance(plain)
