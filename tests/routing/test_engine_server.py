"""Engines that are asked over HTTP, in a process that answers as their sources say: SGLang 0.5.9, vLLM 0.33.0."""

import json
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from harness.engine_payloads import DENSE_FIRST
from harness.engine_servers import engine_servers
from relibra.errors import InvalidInput, Unauthenticated, Unavailable, Unsupported
from relibra.routing.engine_server import ask_engine

MAP = list(range(63, -1, -1))
# sglang/srt/entrypoints/http_server.py, server_info: some fields of ServerArgs, of the scheduler, and the last two.
SGLANG = {
    "model_path": "/models/deepseek-v2-lite",
    "device": "cuda",
    "ep_num_redundant_experts": 0,
    "ep_dispatch_algorithm": "static",
    "init_expert_location": "trivial",
    "enable_eplb": False,
    "status": "ready",
    "max_total_num_tokens": 1024,
    "internal_states": [{"last_gen_throughput": 1.0}],
    "version": "0.5.9",
}
WITH_MAP = SGLANG | {"init_expert_location": json.dumps({"physical_to_logical_map": MAP})}
MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "vllm"}]}
VLLM = {"/v1/models": MODELS, "/version": {"version": "0.33.0"}}
VLLM_OLD = {"/v1/models": MODELS, "/version": {"version": "0.14.1"}}


def vllm_in_development(enable_eplb: bool) -> dict[str, object]:
    """Return the answers with VLLM_SERVER_DEV_MODE=1; without the query, the settings come as text."""
    settings = {"parallel_config": {"enable_expert_parallel": True, "enable_eplb": enable_eplb}}
    return VLLM_OLD | {
        "/server_info": {"vllm_config": str(settings), "vllm_env": {}, "system_env": {}},
        "/server_info?config_format=json": {"vllm_config": settings, "vllm_env": {}, "system_env": {}},
    }


ENGINES: dict[str, dict[str, object]] = {
    "sglang": {"/server_info": WITH_MAP},
    "sglang-trivial": {"/server_info": SGLANG},
    "sglang-old": {"/get_server_info": WITH_MAP},
    "sglang-new": {"/server_info": WITH_MAP | {"version": "0.5.23"}},
    "sglang-moving": {"/server_info": SGLANG | {"enable_eplb": True}},
    "sglang-file": {"/server_info": SGLANG | {"init_expert_location": "/models/location.json"}},
    "sglang-counts": {"/server_info": SGLANG | {"init_expert_location": '{"logical_count": [[1, 2]]}'}},
    "sglang-guarded": {"/server_info": [200, WITH_MAP, "key"]},
    "vllm": VLLM,
    "vllm-guarded": VLLM | {"/v1/models": [200, MODELS, "key"]},
    "vllm-old": VLLM_OLD,
    "vllm-old-eplb": vllm_in_development(enable_eplb=True),
    "vllm-old-without": vllm_in_development(enable_eplb=False),
    "other": {"/version": {"version": "1.2.0"}, "/v1/models": {"data": [{"owned_by": "tensorrt_llm"}]}},
    "page": {"/server_info": "<html>", "/v1/models": {"data": None}},
    "broken": {"/server_info": [503, "", None]},
}


@pytest.fixture(scope="module")
def engines() -> Iterator[str]:
    with engine_servers(ENGINES) as url:
        yield url


@pytest.mark.parametrize("name", ["sglang", "sglang-old"])
def test_S9_a_server_that_sends_slots_gives_its_own_map(engines: str, name: str) -> None:
    physical = ask_engine(f"{engines}/{name}/", DENSE_FIRST)
    assert physical is not None
    np.testing.assert_array_equal(physical.physical_to_logical_LP, [MAP] * 3)


def test_a_map_from_a_file_goes_before_what_the_server_says(engines: str) -> None:
    for name in ("sglang", "sglang-file"):
        physical = ask_engine(f"{engines}/{name}", DENSE_FIRST, np.arange(64))
        assert physical is not None
        np.testing.assert_array_equal(physical.physical_to_logical_LP, [np.arange(64)] * 3)


def test_a_server_with_every_expert_in_its_own_slot_needs_no_map(engines: str) -> None:
    physical = ask_engine(f"{engines}/sglang-trivial", DENSE_FIRST)
    assert physical is not None
    np.testing.assert_array_equal(physical.physical_to_logical_LP, [np.arange(64)] * 3)


@pytest.mark.parametrize("name", ["sglang-new", "vllm", "vllm-old-without"])
def test_servers_that_send_the_choice_of_the_router_need_no_translation(engines: str, name: str) -> None:
    assert ask_engine(f"{engines}/{name}", DENSE_FIRST) is None


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (
            "sglang-moving",
            Unsupported,
            "SGLang 0.5.9 sends physical expert ids, and EPLB moves experts while it serves",
        ),
        ("sglang-counts", Unsupported, "computed their map from the logical_count"),
        ("sglang-file", InvalidInput, "expected the map in the server's --init-expert-location"),
        ("vllm-old", Unsupported, "vLLM 0.14.1 sends the slots of experts .* use vLLM 0.16 or later"),
        ("vllm-old-eplb", Unsupported, "vLLM 0.14.1 sends the slots of experts"),
        ("other", InvalidInput, "expected SGLang, .* or vLLM, .* got models owned by tensorrt_llm"),
        ("page", InvalidInput, "server http://.*/page: expected SGLang, .* got neither"),
        ("broken", Unavailable, r"broken/server_info\?config_format=json: expected an answer, got HTTP 503"),
    ],
)
def test_S9_servers_whose_ids_cannot_be_told_are_refused_by_name(
    engines: str, name: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ask_engine(f"{engines}/{name}", DENSE_FIRST)


@pytest.mark.parametrize("name", ["sglang-guarded", "vllm-guarded"])
def test_the_key_of_a_server_is_sent_and_a_missing_or_wrong_one_is_named(engines: str, name: str) -> None:
    url = f"{engines}/{name}"
    assert (ask_engine(url, DENSE_FIRST, api_key="key") is None) == (name == "vllm-guarded")
    with pytest.raises(Unauthenticated, match="asks for its API key, and none was given"):
        ask_engine(url, DENSE_FIRST)
    with pytest.raises(Unauthenticated, match="it refused the one given"):
        ask_engine(url, DENSE_FIRST, api_key="other")


@pytest.mark.parametrize("url", ["sglang:30000", "file:///etc/hosts", "http://", "http://[", ""])
def test_S7_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="server: expected http://host:port"):
        ask_engine(url, DENSE_FIRST)


def test_a_server_that_is_away_or_silent_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unavailable, match=f"no server answers at {url}/server_info.*timed out"):
            ask_engine(url, DENSE_FIRST, timeout_s=0.05)
    with pytest.raises(Unavailable, match=f"no server answers at {url}/server_info"):
        ask_engine(url, DENSE_FIRST)
