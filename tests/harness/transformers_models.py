"""Every MoE architecture of the installed transformers: its `config.json`, and the MoE layers of the built model.

`python tests/harness/transformers_models.py` prints a row for each. With `--table` it writes the keys of the rows that
matter to `tests/routing/transformers_models.json`, which is tested without transformers. Models are built on torch's
meta device, so they take no memory at any size.
"""

import json
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from relibra.errors import InvalidInput
from relibra.routing.model_config import expert_parameters, read_config, read_model_config

TABLE = Path(__file__).parents[1] / "routing" / "transformers_models.json"

_HAS_EXPERTS = re.compile(r"class \w*(Experts|Router|SparseMoe|MoE|Moe)\w*\(")
_RELEVANT = re.compile(
    r"layer|expert|moe|top_?k|sparse|dense|block|mlp|pattern|encoder|model_type|config$|num_nextn|(hidden|inter\w+|latent)_size$|hidden_act$"
)
_NUM_LAYERS = 8

_GEMMA4 = {"enable_moe_block": True, "num_experts": 16, "top_k_experts": 4, "moe_intermediate_size": 32}
_HUNYUAN = {"num_experts": 16, "moe_topk": 4, "head_dim": 128}
_LFM2 = {"layer_types": ["conv"] * 6 + ["full_attention"] * 2}
_QWEN4 = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 256,
    "indexer_budget": 128,
    "indexer_compress_ratio": 8,
}
_NEMOTRON = ["mamba", "moe", "attention", "moe", "mlp", "moe"]
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "afmoe": [{}, {"num_dense_layers": 3}],
    "deepseek_v2": [{"num_experts_per_tok": 6}, {"num_experts_per_tok": 6, "first_k_dense_replace": 2}],
    "deepseek_v3": [{}, {"first_k_dense_replace": 5}],
    "dots1": [{"n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 1, "first_k_dense_replace": 1}],
    "ernie4_5_moe": [{}, {"moe_layer_start_index": 2, "moe_layer_end_index": 5, "moe_layer_interval": 2}],
    "gemma4_text": [_GEMMA4],
    "hunyuan_v1_moe": [_HUNYUAN],
    "jamba": [{}, {"expert_layer_period": 3, "expert_layer_offset": 2}],
    "lfm2_moe": [_LFM2, _LFM2 | {"num_dense_layers": 5}],
    "llama4_text": [{}, {"interleave_moe_layer_step": 2}, {"moe_layers": [1, 6]}],
    "longcat_flash": [{}, {"zero_expert_num": 0}],
    "nemotron_h": [{}, {"layers_block_type": _NEMOTRON}, {"hybrid_override_pattern": "ME*E-E", "num_hidden_layers": 6}],
    "qwen3_moe": [{}, {"mlp_only_layers": [0, 3]}, {"decoder_sparse_step": 3}],
    "qwen4_exp": [{"text_config": _QWEN4 | {"num_hidden_layers": 8}}],
    "qwen4_exp_text": [_QWEN4],
}
"""Settings that give an architecture experts where its defaults have none, or that move its MoE layers."""
_REFUSED = {
    "longcat_flash": ("zero_expert_num: ", "num_hidden_layers and num_layers: "),
    "nllb-moe": "is_encoder_decoder: ",
    "switch_transformers": "is_encoder_decoder: ",
}
"""The beginning of the error for architectures that relibra refuses."""
_TWO_WIDTHS = "ernie4_5_vl_moe"
"""Its experts for text and for images differ in width, so the size of an expert is refused; the layers are read."""


def misread(row: Mapping[str, Any], folder: Path) -> str:
    """Return how relibra's reading of a row's config differs from the model that was built; empty if it does not."""
    path = folder / "config.json"
    path.write_text(json.dumps(row["config"]))
    want = {key: value for key, value in row.items() if key not in ("model_type", "config") and value is not None}
    try:
        layers = read_model_config(path)
        is_moe = "".join("-+"[each] for each in layers.is_moe)
        got = {"is_moe": is_moe, "num_experts": layers.num_experts, "top_k": layers.top_k}
        if row["model_type"] == _TWO_WIDTHS:
            del want["expert_parameters"]
        elif "expert_parameters" in want:
            got["expert_parameters"] = expert_parameters(read_config(path))
    except InvalidInput as error:
        refused = _REFUSED.get(row["model_type"])
        return "" if refused and str(error).startswith(refused) else f"{row['model_type']}: {error}"
    got = {key: got[key] for key in want}
    return "" if got == want else f"{row['model_type']}: built {want}, read {got}"


def rows() -> Iterator[dict[str, Any]]:
    """Yield a row for every architecture and variant: its config, and the layers, experts and top-k that were built."""
    import transformers
    from transformers import CONFIG_MAPPING

    transformers.logging.set_verbosity_error()
    models = Path(transformers.__file__).parent / "models"
    folders = {
        path.parent.name for path in models.glob("*/modeling_*.py") if _HAS_EXPERTS.search(path.read_text("utf-8"))
    }
    for model_type in sorted(CONFIG_MAPPING):
        config_class = CONFIG_MAPPING[model_type]
        if config_class.__module__.split(".")[-2] not in folders:
            continue
        for settings in VARIANTS.get(model_type, [{}]):
            try:
                row = _row(config_class, settings)
            except Exception as error:
                print(f"not built: {model_type} {settings}: {type(error).__name__} {error}"[:200], file=sys.stderr)
                continue
            if row is not None:
                yield {"model_type": model_type} | row


def _row(config_class: Any, settings: dict[str, Any]) -> dict[str, Any] | None:
    import torch
    from transformers import AutoModel

    try:
        config = config_class(**{"num_hidden_layers": _NUM_LAYERS} | settings)
    except Exception:
        config = config_class(**settings)
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModel.from_config(config)
    blocks = _blocks(model)
    if not blocks:
        return None
    stack, _, _ = next(iter(blocks.values()))
    is_moe = [index in blocks for index in range(len(stack))]
    num_experts = {_num_experts(experts) for _, _, experts in blocks.values()}
    parameters = {_expert_parameters(experts) for _, _, experts in blocks.values() if _is_whole(experts)}
    top_k = {top_k for _, block, experts in blocks.values() if (top_k := _top_k(block, experts)) is not None}
    return {
        "config": json.loads(config.to_json_string()),
        "is_moe": "".join("-+"[each] for each in is_moe),
        "num_experts": _only(num_experts),
        "top_k": _only(top_k),
        "expert_parameters": _only(parameters),
    }


def _only(values: set[int]) -> int | None:
    """Return the value that all layers share; None if no layer told it."""
    (value,) = values or {None}
    return value


def _blocks(model: Any) -> dict[int, tuple[Any, Any, Any]]:
    """Return the stack of layers, the MoE block and its experts by layer, for the model's first stack of layers."""
    modules = dict(model.named_modules())
    found: dict[int, tuple[Any, Any, Any]] = {}
    first_stack = None
    for name, module in modules.items():
        kind = type(module).__name__
        match = re.match(r"(.*\blayers|.*\bblocks|.*\bblock)\.(\d+)\.", name)
        if match is None or not kind.endswith("Experts") or "Shared" in kind or "self_attention" in name:
            continue
        first_stack = first_stack or match[1]
        if match[1] == first_stack:
            found.setdefault(int(match[2]), (modules[match[1]], modules[name.rpartition(".")[0]], module))
    return found


def _num_experts(experts: Any) -> int:
    """Return the size of the experts' first dimension, or the number of experts that are modules of their own."""
    sizes = [parameter.shape[0] for parameter in experts.parameters(recurse=False) if parameter.ndim == 3]
    return int(sizes[0]) if sizes else len(experts)


def _is_whole(experts: Any) -> bool:
    """Return whether a module holds all projections of its experts, stacked in tensors of three dimensions."""
    return sum(parameter.ndim == 3 for parameter in experts.parameters(recurse=False)) > 1


def _expert_parameters(experts: Any) -> int:
    """Return the weights of one expert, without biases."""
    stacked = [each.numel() for each in experts.parameters(recurse=False) if each.ndim == 3]
    return sum(stacked) // _num_experts(experts)


def _top_k(block: Any, experts: Any) -> int | None:
    """Run the block on the meta device and return how many experts it hands its experts module for each token."""
    import torch

    seen: list[int] = []

    def forward(hidden: Any, *args: Any, **kwargs: Any) -> Any:
        indices = [each for each in (*args, *kwargs.values()) if torch.is_tensor(each) and not each.is_floating_point()]
        seen.append(indices[0].shape[-1])
        return torch.zeros_like(hidden)

    original, experts.forward = experts.forward, forward
    width = next(parameter.shape[-1] for parameter in block.parameters() if parameter.ndim == 2)
    for shape in ((1, 4, width), (4, width)):
        try:
            block(torch.empty(shape, device="meta", dtype=next(block.parameters()).dtype))
        except Exception:
            continue
    experts.forward = original
    return seen[0] if seen else None


def _relevant(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a configuration that could say something of layers and experts."""
    return {
        key: _relevant(value) if isinstance(value, dict) else value
        for key, value in sorted(config.items())
        if _RELEVANT.search(key) and value is not None and (not isinstance(value, dict) or _relevant(value))
    }


if __name__ == "__main__":
    if "--table" in sys.argv:
        lines = [json.dumps(row | {"config": _relevant(row["config"])}) for row in rows()]
        TABLE.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    else:
        for row in rows():
            print(json.dumps(row))
