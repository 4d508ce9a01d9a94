"""`relibra placement` writes what SGLang's own code reads."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from harness import frameworks
from harness.command_line import relibra
from harness.engine_code import RELEASES, imported, release
from relibra.errors import InvalidInput
from relibra.routing import RoutingTrace, write_trace

_run = partial(relibra, "placement")
_FOLDER = frameworks.checkout(".")


@pytest.fixture
def recorded(tmp_path: Path) -> list[object]:
    """A trace of a model with a dense layer and two MoE layers, and its config."""
    rng = np.random.default_rng(0)
    routed = np.minimum(rng.geometric(0.2, (900, 2, 2)) - 1, 15).astype(np.uint8)
    write_trace(
        tmp_path / "trace.npz", RoutingTrace(routed_experts=routed, offsets=np.arange(0, 901, 30), num_experts=16)
    )
    config = {"num_hidden_layers": 3, "first_k_dense_replace": 1, "n_routed_experts": 16, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return [tmp_path / "trace.npz", "--model-config", tmp_path / "config.json", "-o", tmp_path / "placement.json"]


def test_it_writes_a_row_for_every_transformer_layer_and_says_what_it_gains(recorded, tmp_path):
    said = json.loads(_run(*recorded, "--ep-size", 4, "--redundant-experts", 8, "--json"))
    (expert_XP,) = json.loads((tmp_path / "placement.json").read_text()).values()
    assert expert_XP[0] == [*range(16), *range(8)], "SGLang's own default, in the layer without experts"
    assert [(len(expert_P), set(expert_P)) for expert_P in expert_XP] == [(24, set(range(16)))] * 3
    assert said["imbalance"] < 1.1 < 1.4 < said["imbalance_trivial"]
    assert "--ep-num-redundant-experts 8" in _run(*recorded, "--ep-size", 4, "--redundant-experts", 8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--ep-size", 4, "--redundant-experts", 3), "a multiple of 4 ranks"),
        (("--ep-size", 4, "--nodes", 3), "a multiple of 3 nodes"),
        (("--ep-size", 4, "-o", "placement.npz"), "ends in .json"),
    ],
)
def test_what_sglang_could_not_load_is_refused(recorded, options, words):
    with pytest.raises(InvalidInput, match=words):
        _run(*recorded, *options)


def test_sglang_reads_the_placement(recorded, tmp_path, monkeypatch):
    if _FOLDER is None or not (root := release("sglang", _FOLDER)).is_dir():
        pytest.skip(
            f"needs sglang {RELEASES['sglang']}: python tests/harness/engine_code.py DIR, RELIBRA_FRAMEWORKS=DIR"
        )
    _run(*recorded, "--ep-size", 4, "--redundant-experts", 8)
    moe = SimpleNamespace(
        init_expert_location=str(tmp_path / "placement.json"),
        ep_num_redundant_experts=8,
        ep_dispatch_algorithm=None,
        moe_a2a_backend="none",
    )
    given = {
        "srt.runtime_context.get_exec": lambda: SimpleNamespace(moe=moe),
        "srt.runtime_context.get_device": lambda: SimpleNamespace(device="cpu"),
        "srt.runtime_context.get_parallel": lambda: SimpleNamespace(ep_size=4, elastic_ep_initial_size=None),
    }
    with imported(root, "sglang", ["srt.eplb.expert_location"], given) as (module,):
        of_model = module.ModelConfigForExpertLocation(num_layers=3, num_logical_experts=16)
        monkeypatch.setattr(module.ModelConfigForExpertLocation, "from_model_config", lambda _: of_model)
        metadata = module.compute_initial_expert_location_metadata(None, 0)
    (expert_XP,) = json.loads((tmp_path / "placement.json").read_text()).values()
    assert torch.equal(metadata.physical_to_logical_map_cpu, torch.tensor(expert_XP))
    assert (metadata.logical_to_all_physical_map_num_valid.sum(dim=1) == 24).all()
    assert metadata.num_physical_experts == 24
