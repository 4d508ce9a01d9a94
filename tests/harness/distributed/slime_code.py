"""slime's own code, imported from a checkout without what it needs and nobody installs for these tests."""

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from harness import frameworks
from harness.distributed import slime_engines

MISSING = (
    "PIL",
    "accelerate",
    "aiohttp",
    "datasets",
    "httpx",
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
_REPLACED = ("megatron.training",)
"""Packages that are mocks even if they are installed, as this one is with megatron-core 0.19 and newer."""


def import_from(folder: Path, *packages: str, missing: Sequence[str] = MISSING) -> None:
    """Let packages of a checkout be imported, without the packages that are not installed here.

    Args:
        folder: the checkout.
        packages: the packages that are imported from it.
        missing: the packages that are mocks where they are not installed.
    """
    sys.meta_path += [Checkout(folder, each) for each in packages]
    sys.meta_path.append(StandIns([name for name in missing if importlib.util.find_spec(name) is None]))
    sys.meta_path.insert(0, StandIns(_REPLACED))


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives packages of mocks."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._missing = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        is_missing = any(f"{name}.".startswith(f"{each}.") for each in self._missing)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_missing else None

    def create_module(self, spec: Any) -> ModuleType:
        return _Package(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []


class Checkout(importlib.abc.MetaPathFinder):
    """Finds a package in a checkout."""

    def __init__(self, folder: Path, package: str) -> None:
        self._folder, self._package = folder, package

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.machinery.PathFinder.find_spec(name, [str(self._folder)]) if name == self._package else None


class _Package(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock(name=f"{self.__name__}.{name}")


@functools.cache
def imported() -> SimpleNamespace:
    """Return slime's modules on a rank, for a host without an accelerator. The process must end afterwards."""
    code = modules()
    code.groups.init_gloo_group()
    return code


@functools.cache
def modules() -> SimpleNamespace:
    """Return slime's modules, for a host without an accelerator. The process must end afterwards."""
    folder = frameworks.checkout("slime")
    assert folder is not None, frameworks.reason("slime")
    import_from(folder, "slime")
    at = "slime.backends.megatron_utils"
    names = {
        "accelerator": "slime.utils.accelerator",
        "groups": "slime.utils.distributed_utils",
        "actor": f"{at}.actor",
        "from_distributed": f"{at}.update_weight.update_weight_from_distributed",
        "from_tensor": f"{at}.update_weight.update_weight_from_tensor",
        "iterator": f"{at}.update_weight.hf_weight_iterator_direct",
        "model": f"{at}.model",
        "initialize": f"{at}.initialize",
        "train_metrics": "slime.observability.train_metric_utils",
        "reload": "slime.utils.reloadable_process_group",
        "replay": "slime.utils.routing_replay",
        "schedule": "slime.utils.dp_schedule",
        "slime_data": "slime.utils.data",
    }
    if importlib.util.find_spec("slime.utils.accelerator") is None:  # slime 0.3.1
        names |= {"accelerator": "torch.cuda", "train_metrics": "slime.utils.train_metric_utils"}
    code = SimpleNamespace(**{name: importlib.import_module(module) for name, module in names.items()})
    code.accelerator.synchronize = lambda *_: None
    code.accelerator.current_device = lambda: torch.device("cpu")
    no_pinned_memory()
    code.accelerator.device = code.accelerator.current_device
    code.accelerator.ipc_collect = code.accelerator.empty_cache = lambda: None
    code.from_tensor.FlattenedTensorBucket = slime_engines.FlattenedTensorBucket
    code.from_tensor.MultiprocessingSerializer = slime_engines.MultiprocessingSerializer
    vars(importlib.import_module("safetensors.torch"))["save_file"] = slime_engines.save_file
    for module in (code.iterator, code.from_tensor):
        module.tqdm = lambda each, **_: each
    for module in (code.iterator, code.from_distributed, code.from_tensor):
        module.convert_to_hf = converting_experts(module.convert_to_hf)
    return code


def no_pinned_memory() -> None:
    """Let tensors be pinned without an accelerator, which pinning needs."""
    plain = torch.empty_like
    torch.empty_like = lambda *a, pin_memory=False, **more: plain(*a, **more)


def converting_experts(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Let slime convert the experts. Its converters know the other layers under Transformer Engine's names only."""

    def convert(args: Any, model_name: str, name: str, parameter: Tensor, *rest: Any, **more: Any) -> Any:
        return (
            plain(args, model_name, name, parameter, *rest, **more) if ".mlp.experts." in name else [(name, parameter)]
        )

    return convert
