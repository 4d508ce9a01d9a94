"""What SGLang's and vLLM's own code makes of routes that its routers capture, read by the adapters.

T tokens of a batch, X transformer layers, K top-k.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from harness import frameworks
from harness.engine_code import RELEASES, function, imported, release
from harness.engine_payloads import DENSE_FIRST, count, routes
from relibra.errors import InvalidInput
from relibra.routing import ModelLayers, decode, decode_output, decode_response

PROMPTS, GENERATED = (5, 3), 4
"""Tokens of the prompts of two requests that share all batches, and the tokens that each generates."""
HASHED_FIRST = ModelLayers(num_experts=64, top_k=4, is_moe=(True,) * 4)
"""A model like DeepSeek-V4, whose first layer looks experts up by token."""

_FOLDER = frameworks.checkout(".")


def root(name: str) -> Path:
    """Return the folder of an engine's release, or skip the test."""
    if _FOLDER is None or not release(name, _FOLDER).is_dir():
        pytest.skip(f"needs {name} {RELEASES[name]}: python tests/harness/engine_code.py DIR, RELIBRA_FRAMEWORKS=DIR")
    return release(name, _FOLDER)


def constant(**values: Any) -> Callable[[], SimpleNamespace]:
    return lambda: SimpleNamespace(**values)


def forward_passes() -> Iterator[list[tuple[int, int, int]]]:
    """Yield the batches of both requests: for each request its number, and the first and the last token, exclusive."""
    yield [(request, 0, length) for request, length in enumerate(PROMPTS)]
    for step in range(GENERATED - 1):
        yield [(request, length + step, length + step + 1) for request, length in enumerate(PROMPTS)]


def captured(routes_BTLK: list[np.ndarray], batch: list[tuple[int, int, int]], layer: int) -> torch.Tensor:
    """Return the choice of one router for the tokens of a batch, `[T, K]`."""
    rows = [routes_BTLK[request][start:end, layer] for request, start, end in batch]
    return torch.from_numpy(np.concatenate(rows)).to(torch.int32)


@pytest.fixture(params=[0, 1], ids=["", "fused shared expert"])
def sglang(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Yield a function that has SGLang answer both requests."""
    where, num_shared = root("sglang"), request.param
    given = {
        "srt.runtime_context.get_schedule": constant(chunked_prefill_size=64),
        "srt.runtime_context.get_parallel": constant(num_dp_ranks=1, attn_tp_size=1),
        "srt.layers.dp_attention.is_dp_attention_enabled": lambda: False,
        "srt.layers.moe.get_moe_a2a_backend": constant(is_deepep=lambda: False, is_deepep_v2=lambda: False),
        "srt.utils.is_cuda": lambda: False,
        "srt.utils.is_hip": lambda: False,
        "srt.mem_cache.pool_host.common.ALLOC_MEMORY_FUNCS": {
            "cpu": lambda shape, dtype, **_: torch.empty(shape, dtype=dtype)
        },
    }
    encode = function(where, "sglang.srt.managers.detokenizer_manager", "_b64_encode_per_request", pybase64=pybase64())
    names = ["srt.state_capturer.base", "srt.state_capturer.routed_experts"]
    with imported(where, "sglang", names, given) as (_, module):

        def answers(layers: ModelLayers, routes_BTLK: list[np.ndarray], captures: list[int], start: int = 0) -> Any:
            config = SimpleNamespace(num_experts_per_tok=layers.top_k, num_hidden_layers=layers.num_layers)
            capturer = module.RoutedExpertsCapturer(SimpleNamespace(hf_text_config=config), 32, 2, num_shared, "cpu")
            slots = np.random.default_rng(0).permutation(32)
            slot_of = torch.from_numpy(slots.reshape(2, 16))
            for batch in forward_passes():
                for layer, moe_layer in zip(captures, range(layers.num_moe_layers)[-len(captures) :], strict=True):
                    capturer.capture(layer, captured(routes_BTLK, batch, moe_layer))
                written = torch.cat([slot_of[each, first:end] for each, first, end in batch])
                capturer.on_forward_end(SimpleNamespace(out_cache_loc=written, out_cache_loc_virtual=None), False, None)
            pool = SimpleNamespace(req_to_token=slot_of)
            topk = [capturer.get_topk(each, length + GENERATED, pool, start) for each, length in enumerate(PROMPTS)]
            return [
                {"meta_info": {"routed_experts": text, "prompt_tokens": length, "completion_tokens": GENERATED}}
                for text, length in zip(encode(topk), PROMPTS, strict=True)
            ]

        yield answers


def pybase64() -> Any:
    import base64

    return SimpleNamespace(b64encode=base64.b64encode)


def test_what_sglang_records_is_read_with_its_place_and_without_the_last_token(sglang: Any) -> None:
    rows = [routes(seed, length + GENERATED - 1, DENSE_FIRST) for seed, length in enumerate(PROMPTS)]
    for start in (0, 2):
        read = decode_response(sglang(DENSE_FIRST, rows, [1, 2, 3], start), DENSE_FIRST)
        for routing, expected, length in zip(read, rows, PROMPTS, strict=True):
            np.testing.assert_array_equal(routing.routed_TLK, expected[start:])
            assert (routing.num_tokens, int(routing.position_T[0])) == (length + GENERATED, start)


def test_S9_layers_that_sglang_never_captures_are_refused(sglang: Any) -> None:
    rows = [routes(seed, length + GENERATED - 1, HASHED_FIRST) for seed, length in enumerate(PROMPTS)]
    with pytest.raises(InvalidInput, match=r"MoE layer 0: expected routes, got zeros only.*DeepSeek-V4's hash_moe"):
        decode_response(sglang(HASHED_FIRST, rows, [1, 2, 3]), HASHED_FIRST)


@pytest.fixture
def vllm() -> Iterator[Any]:
    """Yield a function that has vLLM answer both requests, as outputs in the process and over HTTP."""
    where = root("vllm")
    kind = Enum("kind", ["CUMULATIVE", "DELTA", "FINAL_ONLY"])
    context = constant(dp_metadata=None, batch_descriptor=None)
    given = {
        "forward_context.get_forward_context": context,
        "v1.worker.ubatching.dbo_current_ubatch_token_offset": lambda: 0,
        "platforms.current_platform": SimpleNamespace(device_type="cpu"),
        "sampling_params.RequestOutputKind": kind,
    }
    names = [
        "model_executor.layers.fused_moe.routed_experts_capturer",
        "outputs",
        "v1.engine.output_processor",
        "utils.serial_utils",
    ]
    with imported(where, "vllm", names, given) as (capturing, outputs, processing, serial):

        def answers(layers: ModelLayers, routes_BTLK: list[np.ndarray], start: int = 0, output_kind: str = "") -> Any:
            model = SimpleNamespace(
                get_total_num_hidden_layers=lambda: layers.num_layers,
                get_num_experts=lambda: layers.num_experts,
                get_num_experts_per_tok=lambda: layers.top_k,
                hf_text_config=SimpleNamespace(model_type="tiny"),
            )
            parallel = SimpleNamespace(data_parallel_rank=0, tensor_parallel_size=1)
            config = SimpleNamespace(model_config=model, parallel_config=parallel)
            capturer = capturing.RoutedExpertsCapturer(64, config)
            states = [object.__new__(processing.RequestState) for _ in PROMPTS]
            for state, length in zip(states, PROMPTS, strict=True):
                state.output_kind = kind[output_kind or "FINAL_ONLY"]
                state.routed_experts_chunks, state.sampling_mask_chunks = [], []
                state.request_index, state.spec_decode_metrics, state.weight_version_starts = 0, None, []
                state.logprobs_processor = SimpleNamespace(logprobs=None, cumulative_logprob=None)
                tokens = list(range(length, length + GENERATED))
                state.detokenizer = SimpleNamespace(
                    get_next_output_text=lambda *_: "", output_token_ids=tokens, num_output_tokens=lambda: GENERATED
                )
            for batch in forward_passes():
                for moe_layer, layer in enumerate(np.flatnonzero(layers.is_moe)):
                    capturer.capture(int(layer), captured(routes_BTLK, batch, moe_layer))
                rows = capturer.snapshot_routing_data(sum(end - first for _, first, end in batch)).numpy()
                for each, first, end in batch:
                    own, rows = rows[: end - first], rows[end - first :]
                    states[each].routed_experts_chunks.append(own[max(0, start - first) :])
            completions = [state._new_completion_output([1], "stop", None) for state in states]
            return [
                outputs.RequestOutput(f"seq-{index}", None, [0] * length, None, [completion], True)
                for index, (length, completion) in enumerate(zip(PROMPTS, completions, strict=True))
            ], [{"choices": [{"routed_experts": serial.numpy2base64(each.routed_experts)}]} for each in completions]

        yield answers


@pytest.mark.parametrize("num_experts", [64, 384])
def test_what_vllm_records_is_read_with_its_place_and_without_the_last_token(vllm: Any, num_experts: int) -> None:
    layers = ModelLayers(num_experts=num_experts, top_k=4, is_moe=DENSE_FIRST.is_moe)
    rows = [routes(seed, length + GENERATED - 1, layers) for seed, length in enumerate(PROMPTS)]
    for start in (0, 2):
        outputs, bodies = vllm(layers, rows, start)
        for output, body, expected, length in zip(outputs, bodies, rows, PROMPTS, strict=True):
            (completion,) = output.outputs
            body |= {"usage": {"prompt_tokens": length, "completion_tokens": GENERATED}}
            (read,) = decode_response(body, layers)
            assert (read.num_tokens, int(read.position_T[0])) == (length + GENERATED, start)
            np.testing.assert_array_equal(read.routed_TLK, expected[start:])
            in_process = decode(completion.routed_experts, layers, format_name="vllm")
            np.testing.assert_array_equal(in_process.counts(), count(expected[start:], layers))


@pytest.mark.parametrize("output_kind", ["DELTA", "CUMULATIVE"])
def test_the_last_output_of_a_request_of_vllm_has_the_rows_of_all_tokens(vllm: Any, output_kind: str) -> None:
    rows = [routes(seed, length + GENERATED - 1, DENSE_FIRST) for seed, length in enumerate(PROMPTS)]
    for output, expected in zip(vllm(DENSE_FIRST, rows, output_kind=output_kind)[0], rows, strict=True):
        assert len(output.outputs[0].token_ids) == (1 if output_kind == "DELTA" else GENERATED)
        (read,) = decode_output(output, DENSE_FIRST)
        np.testing.assert_array_equal(read.routed_TLK, expected)
