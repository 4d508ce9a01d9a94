"""From inference servers over HTTP to a plan: real sockets, and a real planner.

vLLM's and SGLang's responses are the bytes that their servers sent; `harness.real_responses` says how they ran. This
file makes those of NeMo-RL and SkyRL, after a reading of their code.
"""

import json
import socket
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI, Response
from numpy.typing import NDArray

from harness.engine_payloads import count, nemo_rl, routes, skyrl
from harness.real_responses import CONFIGS, SAVED, routes_of
from harness.services import CLUSTER, MODEL, PARAMS, Service, eventually
from relibra.planning import Schedule, StepLoad, check_step_plan
from relibra.planning.load import home_loads, imbalance
from relibra.planning.solve import solve
from relibra.rollout import RolloutReporter
from relibra.routing import ModelLayers, decode_response, read_model_config
from relibra.wire.client import PlannerClient

pytestmark = pytest.mark.integration

LAYERS = ModelLayers(num_experts=MODEL.num_experts, top_k=MODEL.top_k, is_moe=(False, True, True, True))
NUM_SEQUENCES = 8
PROMPT_TOKENS = 4
SEVERAL = {
    "vllm": ["completions", "completions_n2_ids", "chat_n2", "chat_ids", "eos", "generate_n2"],
    "sglang": ["generate_n2", "generate_batch", "generate_eos", "generate_abort", "completions", "chat_meta_info_n2"],
}
"""Kinds of saved responses, some with several choices or prompts."""


def recorded(index: int) -> np.ndarray:
    """Return the expert ids `[T, L, K]` that the model routed for prompt `index`."""
    return routes(index, 12 + 5 * index, LAYERS)


def usage(rows_TLK: np.ndarray) -> dict[str, int]:
    return {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": len(rows_TLK) + 1 - PROMPT_TOKENS}


def engine_server() -> FastAPI:
    """Endpoints that answer as vLLM, SGLang, NeMo-RL and SkyRL do."""
    app = FastAPI()

    def openai(index: int, **choice: Any) -> dict[str, Any]:
        return {"id": f"cmpl-{index}", "choices": [{"index": 0, "finish_reason": "stop", **choice}]}

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

    @app.post("/{engine}/{path:path}")
    def replay(engine: str, path: str, body: dict[str, Any]) -> Response:
        return Response(next(each["response"] for each in SAVED.values() if is_of(each, f"/{path}", body)))

    return app


def is_of(kind: dict[str, Any], path: str, body: dict[str, Any]) -> bool:
    """Return whether a kind of response is that to a request."""
    return kind["path"] == path and kind["request"] == body


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


def ask(url: str, body: dict[str, Any]) -> bytes:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return bytes(response.read())


@pytest.mark.parametrize("engine", SEVERAL)
def test_S8_what_a_server_sent_becomes_the_plan_of_its_routing(
    engines: str, shared_planner: Service, engine: str, tmp_path: Path
) -> None:
    kinds = [f"{engine}/{name}" for name in SEVERAL[engine]]
    (config := tmp_path / "config.json").write_text(json.dumps(CONFIGS[engine]))
    layers = read_model_config(config)
    answers = [ask(f"{engines}/{engine}{SAVED[kind]['path']}", SAVED[kind]["request"]) for kind in kinds]
    check_plan(shared_planner, engine, layers, answers, [routes for kind in kinds for routes in routes_of(kind)])


@pytest.mark.parametrize("endpoint", ["nemo-rl/v1/chat/completions", "skyrl/v1/generate"])
def test_S8_what_a_server_answers_becomes_the_plan_of_its_recorded_routing(
    engines: str, shared_planner: Service, endpoint: str
) -> None:
    answers = [ask(f"{engines}/{endpoint}", {"prompt": index}) for index in range(NUM_SEQUENCES)]
    check_plan(
        shared_planner,
        endpoint.replace("/", "-"),
        LAYERS,
        answers,
        [recorded(index) for index in range(NUM_SEQUENCES)],
    )


def check_plan(
    planner: Service,
    job_id: str,
    layers: ModelLayers,
    answers: Sequence[bytes],
    routes: Sequence[NDArray[np.integer]],
) -> None:
    """Report answers to a planner, and check its plan against one that is made here: equal loads give equal plans."""
    model = replace(MODEL, num_layers=layers.num_moe_layers, num_experts=layers.num_experts, top_k=layers.top_k)
    schedule = Schedule.round_robin(len(routes), 2, CLUSTER)
    with PlannerClient(planner.address) as client:
        client.register_job(job_id, model, CLUSTER, PARAMS)
        with RolloutReporter(planner.address, job_id, num_experts=model.num_experts) as reporter:
            found = [routing for answer in answers for routing in decode_response(answer, layers)]
            names = [f"seq-{index}" for index in range(len(found))]
            for name, routing in zip(names, found, strict=True):
                reporter.report(3, name, routing)
            assert reporter.flush() == len(routes)
        client.submit_schedule(job_id, 3, names, schedule)
        plans = [client.fetch_plan(job_id, 3, model, wait_s=60) for rank in range(CLUSTER.num_ranks)]
    for plan in plans:
        check_step_plan(plan, model, CLUSTER)
    load = StepLoad.of(np.stack([count(each, layers) for each in routes]), schedule, CLUSTER)
    expected = solve(load, schedule, model, CLUSTER, PARAMS)
    assert plans[0].digest == expected.digest
    plain = home_loads(load.load_MLE, CLUSTER.identity_placement(model), CLUSTER.num_ranks)
    assert expected.prediction.imbalance_after < imbalance(plain)
