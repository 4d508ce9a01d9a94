"""slime's own code, imported from a checkout without what it needs and nobody installs for these tests."""

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from harness import frameworks

_MISSING = (
    "PIL",
    "accelerate",
    "aiohttp",
    "datasets",
    "httpx",
    "megatron.training",
    "pylatexenc",
    "ray",
    "safetensors",
    "sglang",
    "sglang_router",
    "torch_memory_saver",
    "tqdm",
    "transformers",
    "wandb",
)
"""Packages that slime's modules import and that the code under test does not use."""


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives a package of mocks for every package of `_MISSING` that is not installed."""

    def __init__(self) -> None:
        self._missing = [name for name in _MISSING if importlib.util.find_spec(name) is None]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        is_missing = any(f"{name}.".startswith(f"{each}.") for each in self._missing)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_missing else None

    def create_module(self, spec: Any) -> ModuleType:
        return _Package(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []


class _Checkout(importlib.abc.MetaPathFinder):
    """Finds the package `slime` in a checkout."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.machinery.PathFinder.find_spec(name, [str(self._folder)]) if name == "slime" else None


class _Package(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock(name=f"{self.__name__}.{name}")


@functools.cache
def imported() -> SimpleNamespace:
    """Return slime's modules, for a host without an accelerator. The process must end afterwards."""
    folder = frameworks.checkout("slime")
    assert folder is not None, frameworks.reason("slime")
    sys.meta_path += [_Checkout(folder), _StandIns()]
    at = "slime.backends.megatron_utils"
    modules = {
        "accelerator": "slime.utils.accelerator",
        "backuper": "slime.utils.tensor_backper",
        "groups": "slime.utils.distributed_utils",
        "actor": f"{at}.actor",
        "from_distributed": f"{at}.update_weight.update_weight_from_distributed",
        "iterator": f"{at}.update_weight.hf_weight_iterator_direct",
        "common": f"{at}.update_weight.common",
    }
    code = SimpleNamespace(**{name: importlib.import_module(module) for name, module in modules.items()})
    code.accelerator.synchronize = lambda *_: None
    code.accelerator.current_device = lambda: torch.device("cpu")
    plain_empty_like = torch.empty_like
    torch.empty_like = lambda *a, pin_memory=False, **more: plain_empty_like(*a, **more)  # pinning needs an accelerator
    code.iterator.tqdm = lambda each, **_: each
    for module in (code.iterator, code.from_distributed):
        module.convert_to_hf = _converting_experts(module.convert_to_hf)
    code.groups.init_gloo_group()
    return code


def _converting_experts(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Let slime convert the experts. Its converters know the other layers under Transformer Engine's names only."""

    def convert(args: Any, model_name: str, name: str, parameter: Tensor, *rest: Any, **more: Any) -> Any:
        return (
            plain(args, model_name, name, parameter, *rest, **more) if ".mlp.experts." in name else [(name, parameter)]
        )

    return convert


class Actor:
    """A trainer of slime, made of its own parts: the backups, the switch between models, and both updates of weights.

    Args:
        chunks: the model chunks of this rank.
        config: their TransformerConfig.
    """

    def __init__(self, chunks: Sequence[Any], config: Any) -> None:
        code = imported()
        self._code = code
        args = SimpleNamespace(
            num_experts=config.num_moe_experts,
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            num_query_groups=config.num_query_groups,
            kv_channels=config.kv_channels,
            vocab_size=None,
            q_lora_rank=None,
            update_weight_buffer_size=1 << 16,
        )
        for chunk in chunks:
            for parameter in chunk.parameters():  # Transformer Engine's grouped products mark their parameters
                parameter.tensor_model_parallel = getattr(parameter, "tensor_model_parallel", False)
        plain = object.__new__(code.actor.MegatronTrainRayActor)
        plain.args, plain.model = args, chunks
        plain.weights_backuper = code.backuper.TensorBackuper.create(
            source_getter=lambda: code.common.named_params_and_buffers(args, chunks, convert_to_global_name=True),
            single_tag=None,
        )
        self.backups, self.switch = plain.weights_backuper, plain._switch_model
        self._args, self._chunks = args, chunks
        self.iterator = self.colocated_iterator()
        self.updater = code.from_distributed.UpdateWeightFromDistributed(
            args, chunks, lambda: self.backups.get("actor"), model_name="qwen3moe", quantization_config=None
        )
        self.updater._is_pp_src_rank = torch.distributed.get_rank() == 0
        self.sent: dict[str, Tensor] = {}
        self.updater._update_bucket_weights_from_distributed = lambda tensors, **_: self._receive(tensors)

    def colocated_iterator(self) -> Any:
        """Return what `UpdateWeightFromTensor` and the saving of Hugging Face checkpoints make their chunks with."""
        return self._code.iterator.HfWeightIteratorDirect(
            self._args, self._chunks, model_name="qwen3moe", quantization_config=None
        )

    def send_live(self) -> dict[str, Tensor]:
        """Return the experts that `UpdateWeightFromDistributed` sends, from the modules; on rank 0."""
        self.sent = {}
        self.updater._send_weights(None)
        return self.sent

    def send_backup(self, tag: str) -> dict[str, Tensor]:
        """Return the experts that `UpdateWeightFromTensor` sends, from a backup."""
        self.sent = {}
        for tensors in self.iterator.get_hf_weight_chunks(self.backups.get(tag)):
            self._receive(tensors)
        return self.sent

    def _receive(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self.sent |= {name: each.detach().clone() for name, each in tensors if ".mlp.experts." in name}
