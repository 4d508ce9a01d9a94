"""Responses of vLLM and SGLang, read by relibra; `harness.real_responses` says how they were made.

T tokens, L layers, K top-k.
"""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from harness.engine_payloads import count
from harness.real_responses import CONFIGS, ENGINES, SAVED, routes_of
from relibra.cli.app import app
from relibra.errors import InvalidInput
from relibra.routing import count_sequences, read_model_config, read_trace
from relibra.routing.recording import read_responses
from relibra.routing.sequence_routing import SequenceRouting

OF_TEXT = r"response: expected .*vLLM streams them in /inference/v1/generate only: do not stream, or use that path"
OF_ONE_CHOICE = r"choices\[1\].routed_experts: .*SGLang's OpenAI API sends those of one choice only"
WITHOUT_ROUTES = {
    "vllm/completions_stream": OF_TEXT,
    "vllm/chat_stream": OF_TEXT,
    "vllm/generate_stream_merged": r"choices\[0\].routed_experts: .* got null, though .* ended: .*; do not stream",
    "sglang/without": r"response: expected .*set return_routed_experts in requests",
}
"""Kinds that relibra refuses, with its messages. Events of a stream are merged where the client reads slower than
vLLM."""
OF_SOME_CHOICES = {f"sglang/{name}": OF_ONE_CHOICE for name in ("completions_n2", "completions_batch", "chat_n2")}
"""Kinds that relibra refuses, although they have the routes of one choice."""
WITHOUT_A_PLACE = {
    *("vllm/completions_batch", "vllm/generate_stream", "vllm/generate_stream_start"),
    *("sglang/completions_stream", "sglang/chat_stream"),
}
"""Kinds whose responses do not tell how many tokens each choice has."""
ENDS_EARLY = {"vllm/eos", "sglang/generate_eos", "sglang/generate_abort"}
"""Kinds in which a token, or the client, ended the response before its limit."""
WITH_ROUTES = sorted(SAVED.keys() - WITHOUT_ROUTES.keys() - OF_SOME_CHOICES.keys())


def read(name: str, tmp_path: Path) -> list[SequenceRouting]:
    """Read one response with relibra."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name.split("/")[0]]))
    return read_responses(io.BytesIO(SAVED[name]["response"].encode()), read_model_config(tmp_path / "config.json"))


def sampling_of(name: str) -> dict[str, Any]:
    request: dict[str, Any] = SAVED[name]["request"]
    return request | request.get("sampling_params", {})


def prompt_lengths(name: str) -> list[int]:
    """Return the tokens of the prompt of each choice."""
    request = SAVED[name]["request"]
    given = [request[key] for key in ("prompt", "text", "token_ids", "input_ids") if key in request]
    prompts = given[0] if given else request["messages"][0]["content"]
    several = prompts if isinstance(prompts[0], str) and isinstance(prompts, list) else [prompts]
    return [len(each) for each in several for _ in range(sampling_of(name).get("n", 1))]


def start_of(name: str) -> int:
    """Return the first token of the prompt whose routes were asked for."""
    sampling = sampling_of(name)
    return int(sampling.get("routed_experts_prompt_start") or sampling.get("routed_experts_start_len") or 0)


def num_generated(name: str) -> int:
    """Return the tokens that each choice generated."""
    sampling = sampling_of(name)
    limit = int(sampling.get("max_tokens") or sampling.get("max_new_tokens") or 64)
    if name not in ENDS_EARLY:
        return limit
    (ids,) = re.findall(r'"(?:token_ids|output_ids)": ?\[([^]]*)\]', SAVED[name]["response"])
    assert ids.count(",") + 1 < limit
    return int(ids.count(",") + 1)


@pytest.mark.parametrize("name", WITH_ROUTES)
def test_every_kind_of_response_is_read_with_the_rows_that_were_asked_for(name: str, tmp_path: Path) -> None:
    start, generated, expected = start_of(name), num_generated(name), routes_of(name)
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
    of_response = SAVED[name]["response"].rpartition('"usage":{')[2]
    prompt_tokens, completion_tokens = (
        int(re.findall(rf'"{kind}_tokens":(\d+)', of_response)[0]) for kind in ("prompt", "completion")
    )
    found = read(name, tmp_path)
    num_rows = sampling_of(name).get("n", 1) * prompt_tokens + completion_tokens - (1 + start_of(name)) * len(found)
    assert sum(each.num_rows for each in found) == num_rows


@pytest.mark.parametrize("name", WITHOUT_ROUTES | OF_SOME_CHOICES)
def test_S9_responses_without_routes_are_refused(name: str, tmp_path: Path) -> None:
    assert len(routes_of(name)) == (name in OF_SOME_CHOICES)
    with pytest.raises(InvalidInput, match=(WITHOUT_ROUTES | OF_SOME_CHOICES)[name]):
        read(name, tmp_path)


@pytest.mark.parametrize("engine", ENGINES)
def test_all_kinds_are_recorded_in_one_trace_and_what_has_no_routes_is_left_out(engine: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[engine]))
    names = [name for name in SAVED if name.startswith(f"{engine}/")]
    # A stream has blank lines between its events, and a response has no line break at its end.
    (tmp_path / "responses.jsonl").write_text("\n".join(SAVED[name]["response"] for name in names))
    arguments = ["--model-config", str(tmp_path / "config.json"), "-o", str(tmp_path / "trace.npz")]
    result = CliRunner().invoke(app, ["record", str(tmp_path / "responses.jsonl"), *arguments])
    expected = [each for name in names for each in routes_of(name)]
    num_left_out = sum(name in WITHOUT_ROUTES | OF_SOME_CHOICES for name in names)
    assert result.exit_code == 1
    assert f"Left out: {num_left_out} of {len(expected) + num_left_out}" in result.stderr
    trace = read_trace(tmp_path / "trace.npz")
    np.testing.assert_array_equal(trace.routed_experts, np.concatenate(expected))
    layers = read_model_config(tmp_path / "config.json")
    np.testing.assert_array_equal(count_sequences(trace), [count(each, layers) for each in expected])
