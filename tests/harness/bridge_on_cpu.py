"""What Megatron-Bridge and the frameworks above it need of a machine with GPUs, stood in for on the CPU.

Transformer Engine, ModelOpt and the data loader of multimodal training are imported and not used. Attention over packed
sequences, also over those of several context-parallel ranks, and norms with sequence parallelism are torch's, because
megatron-core has none without Transformer Engine.
"""

import copy
import sys
import typing
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch

_NOT_HERE = ("transformer_engine", "transformer_engine_torch", "modelopt", "megatron.energon")


def install(*imported: str) -> None:
    """Stand in for what is missing. Call it after `megatron_on_cpu.install`, before anything imports the framework.

    Args:
        imported: more packages that the framework imports and does not use.
    """
    if not hasattr(typing, "override"):  # megatron-core 0.19 asks for Python 3.12, for this name only
        import typing_extensions

        typing.override = typing_extensions.override
    sys.meta_path.insert(0, _Finder((*_NOT_HERE, *imported)))
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(torch.cuda, name, lambda *_, **__: 0)
    torch.cuda.mem_get_info = lambda *_: (1 << 30, 1 << 30)
    _packed_attention()
    _norm()


class _AnyClass(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyClass(name, (), {})


class AnyModule(ModuleType):
    """A module that has every class, and says no to every question."""

    __path__: Sequence[str] = ()
    __version__ = "2.9.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _no if name.startswith("is_") else _AnyClass(name, (), {})


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


def _packed_attention() -> None:
    from megatron.core import parallel_state
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    own = DotProductAttention.__init__

    def build(self: Any, config: Any, *args: Any, **options: Any) -> None:
        alone = copy.copy(config)
        alone.context_parallel_size = 1  # it refuses others
        own(self, alone, *args, **options)

    def forward(self: Any, query: Any, key: Any, value: Any, *_: Any, packed_seq_params: Any, **__: Any) -> Any:
        bounds = packed_seq_params.cu_seqlens_q_padded
        bounds = (packed_seq_params.cu_seqlens_q if bounds is None else bounds).tolist()
        group = parallel_state.get_context_parallel_group()
        order_T = _zigzag(bounds, group.size())
        query_THD, key_THD, value_THD = (
            _gathered(each.squeeze(1) if each.dim() == 4 else each, order_T, group) for each in (query, key, value)
        )
        shared = query_THD.shape[1] // key_THD.shape[1]
        key_THD, value_THD = (each.repeat_interleave(shared, 1) for each in (key_THD, value_THD))
        outputs = [
            torch.nn.functional.scaled_dot_product_attention(
                *(each[first:end].transpose(0, 1) for each in (query_THD, key_THD, value_THD)), is_causal=True
            ).transpose(0, 1)
            for first, end in pairwise(bounds)
        ]
        output_THD = torch.cat(outputs)[order_T.chunk(group.size())[group.rank()]]
        rows = output_THD.shape[0]
        return output_THD.reshape(rows, 1, -1) if query.dim() == 4 else output_THD.reshape(rows, -1)

    DotProductAttention.__init__ = build
    DotProductAttention.forward = forward


def _zigzag(bounds: Sequence[int], num_ranks: int) -> torch.Tensor:
    """Return the rows of packed sequences in the order in which context-parallel ranks hold them, rank by rank."""
    chunks = [torch.arange(first, end).chunk(2 * num_ranks) for first, end in pairwise(bounds)]
    held = [of_sequence[place] for rank in range(num_ranks) for of_sequence in chunks for place in (rank, ~rank)]
    return torch.cat(held) if num_ranks > 1 else torch.arange(bounds[-1])


def _gathered(rows_THD: torch.Tensor, order_T: torch.Tensor, group: Any) -> torch.Tensor:
    """Return the rows of all context-parallel ranks, in the order of the sequences; gradients are added up."""
    from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

    if group.size() == 1:
        return rows_THD
    return gather_from_sequence_parallel_region(rows_THD, group=group)[order_T.argsort()]


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
