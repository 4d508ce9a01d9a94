"""Checkpoints in logical order: an expert is saved and loaded under its own id, wherever it lives.

Such a checkpoint loads in any placement, with any number of expert-parallel ranks, and without relibra.
"""

from collections.abc import Callable, Sequence
from typing import Any

from relibra.errors import Unsupported

_KEY = "distrib_optim_sharding_type"
LOGICAL_SHARDING = "fully_reshardable"
"""The one sharding of a distributed optimizer's state that is by parameter rather than by place in a buffer."""


class _Alone:
    """A module of experts as it would be with one expert a rank: what its own arithmetic numbers is that expert."""

    def __init__(self, module: Any, slot: int, logical_expert: int, num_experts: int) -> None:
        self._module = module
        self.local_experts = [module.local_experts[slot]]
        self.num_local_experts = 1
        self.ep_group = _Rank(logical_expert, num_experts)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._module, name)


class _Rank:
    """Place in a process group of `size` ranks."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


def logical_sharded_state_dict(
    module: Any, logical_experts: Callable[[], Sequence[int]], num_experts: int
) -> Callable[..., dict[str, Any]]:
    """Return a stand-in for `module.sharded_state_dict`.

    Args:
        module: a megatron module with `local_experts`.
        logical_experts: the logical expert in every home slot, now.
        num_experts: E.
    """

    def sharded_state_dict(
        prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for slot, expert in enumerate(logical_experts()):
            alone = _Alone(module, slot, expert, num_experts)
            of_expert = type(module).sharded_state_dict(alone, prefix, sharded_offsets, metadata)
            for key, value in of_expert.items():
                result[key.replace(f"{prefix}local_experts.0.", f"{prefix}local_experts.{slot}.", 1)] = value
        return result

    return sharded_state_dict


def refusing_physical_order(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a stand-in for a distributed optimizer's `sharded_state_dict` that refuses what a reorder would break."""

    def sharded_state_dict(
        model_sharded_state_dict: Any = None,
        is_loading: bool = False,
        sharding_type: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Any:
        wanted = sharding_type or (metadata or {}).get(_KEY, "megatron's default")
        if wanted != LOGICAL_SHARDING:
            raise Unsupported(
                f"relibra's agent does not support checkpoints with distrib_optim_sharding_type {wanted!r}, which "
                f"store optimizer state by place and not by expert; use {_KEY}='{LOGICAL_SHARDING}'"
            )
        return plain(model_sharded_state_dict or {}, is_loading, metadata=(metadata or {}) | {_KEY: wanted})

    return sharded_state_dict
