"""What Megatron-Bridge and the frameworks above it need of a machine with GPUs, stood in for on the CPU.

Transformer Engine, ModelOpt and the data loader of multimodal training are imported and not used. Attention over packed
sequences, also over those of several context-parallel ranks, and norms with sequence parallelism are torch's, because
megatron-core has none without Transformer Engine.
"""

import copy
import importlib.util
import sys
import typing
from abc import ABCMeta
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest import mock

import torch

from harness import packed_attention
from harness.tiny_qwen3_moe import OFF_ON_CPU

_NOT_HERE = ("transformer_engine", "transformer_engine_torch", "modelopt", "megatron.energon")


def install(*imported: str) -> None:
    """Stand in for what is missing. Call it after `megatron_on_cpu.install`, before anything imports the framework.

    Args:
        imported: more packages that the framework imports and does not use.
    """
    if not hasattr(typing, "override"):  # megatron-core 0.19 asks for Python 3.12, for this name only
        import typing_extensions

        typing.override = typing_extensions.override
    import_stand_ins(*_NOT_HERE, *imported)
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(torch.cuda, name, lambda *_, **__: 0)
    torch.cuda.mem_get_info = lambda *_: (1 << 30, 1 << 30)
    packed_attention.install()
    _norm()


def import_stand_ins(*packages: str) -> None:
    """Have packages that are imported and not used be found, installed or not."""
    sys.meta_path.insert(0, _Finder(packages))


def leaving_nothing(move: Callable[..., None]) -> Callable[..., None]:
    """Return a function that moves tensors with `Tensor.to`, and leaves no numbers where they were, as on a GPU."""

    def moved(tensor: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        elsewhere = tensor.clone()
        tensor.fill_(torch.nan)
        return elsewhere

    def run(*args: Any) -> None:
        with mock.patch.object(torch.Tensor, "to", moved):
            move(*args)

    return run


def use_local_layers(bridge: Any) -> None:
    """Have Megatron-Bridge's `AutoBridge` build megatron-core's own layers, with settings that need no GPU."""
    own = bridge.to_megatron_provider

    def to_megatron_provider(self: Any, *args: Any, **kwargs: Any) -> Any:
        provider = own(self, *args, **kwargs)
        for name in OFF_ON_CPU:
            setattr(provider, name, False)
        provider.use_cpu_initialization, provider.transformer_layer_spec = True, layer_spec
        return provider

    bridge.to_megatron_provider = to_megatron_provider


def layer_spec(config: Any, **_: Any) -> Any:
    """Return the layers of a tiny Qwen3-MoE for Megatron-Bridge's providers."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    from harness.distributed.grouped import use_grouped_experts

    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts, moe_grouped_gemm=False, qk_layernorm=True, normalization="RMSNorm"
    )
    if config.moe_grouped_gemm:
        use_grouped_experts(spec)
    return spec


@contextmanager
def defining_kernels() -> Iterator[None]:
    """Let modules with kernels of Triton be imported in the body, where Triton is not installed."""
    if importlib.util.find_spec("triton") is not None:
        yield
        return
    triton, language = AnyModule("triton"), AnyModule("triton.language")
    triton.jit, triton.language = _undecorated, language
    sys.modules |= {"triton": triton, "triton.language": language}
    yield
    del sys.modules["triton"], sys.modules["triton.language"]


def _undecorated(function: Any = None, **_: Any) -> Any:
    return (lambda decorated: decorated) if function is None else function


class _AnyClass(ABCMeta):
    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **_: object) -> "_AnyClass":
        return super().__new__(cls, name, bases, body)

    def __init__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **_: object) -> None:
        super().__init__(name, bases, body)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _any_class(name)


def _any_class(name: str) -> _AnyClass:
    """Return a class that takes all arguments, and decorators of which leave what they decorate as it is."""

    def initialise(self: Any, *_: object, **__: object) -> None: ...

    def call(self: Any, *args: Any, **_: object) -> Any:
        return args[0] if args else self

    return _AnyClass(name, (), {"__init__": initialise, "__call__": call})


class AnyModule(ModuleType):
    """A module that has every class, and says no to every question."""

    __path__: Sequence[str] = ()
    __version__ = "2.9.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _no if name.startswith("is_") else _any_class(name)


def _no(*_: object) -> bool:
    return False


class _Finder(MetaPathFinder, Loader):
    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if any(fullname == each or fullname.startswith(f"{each}.") for each in self._packages):
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return AnyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _norm() -> None:
    """Mark the weights of torch's norms, so that ranks with parts of a sequence add up their gradients."""
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    own = WrappedTorchNorm.__new__

    def create(cls: type[Any], config: Any, *args: Any, **options: Any) -> Any:
        without = copy.copy(config)
        without.sequence_parallel = False
        norm = own(cls, without, *args, **options)
        for each in norm.parameters():
            each.sequence_parallel = config.sequence_parallel
        return norm

    WrappedTorchNorm.__new__ = create
