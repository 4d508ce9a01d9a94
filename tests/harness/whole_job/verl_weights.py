"""verl's transport of weights to servers of their own, over a TCP store; verl's own transports need GPUs.

`checkpoint_engine.custom_backend_module` names this module.
"""

import io
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import torch
from torch.distributed import TCPStore
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.workers.rollout.utils import ensure_async_iterator

_HOST, _KEY = "127.0.0.1", "weights"


@CheckpointEngineRegistry.register("store")
class StoreEngine(CheckpointEngine):  # type: ignore[misc]
    """Rank 0 of the training has the store, which lasts for one update of the weights."""

    store: TCPStore | None = None

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._is_master = is_master

    def prepare(self) -> int | None:
        """Return the port of the store."""
        if not self._is_master:
            return None
        self.store = TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)
        return int(self.store.port)

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: Sequence[int | None]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Return what `init_process_group` gets in the processes of training, and in those of servers."""
        port = metadata[0]
        return {"port": [port] * actor_wg_world_size}, {"port": [port] * rollout_world_size}

    def init_process_group(self, port: int) -> None:
        """Connect to the store."""
        self.store = self.store or TCPStore(_HOST, port, is_master=False)

    def finalize(self) -> None:
        """Leave the store."""
        self.store = None

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> None:
        """Put all weights into the store. Every rank reads them, because reading is collective."""
        sent = {name: weight.clone() async for name, weight in ensure_async_iterator(weights)}
        if self._is_master:
            assert self.store is not None
            torch.save(sent, content := io.BytesIO())
            self.store.set(_KEY, content.getvalue())

    async def receive_weights(self, global_steps: int | None = None) -> AsyncGenerator[tuple[str, torch.Tensor], None]:
        """Yield all weights, once they are there."""
        assert self.store is not None
        for name, weight in torch.load(io.BytesIO(self.store.get(_KEY))).items():
            yield name, weight
