"""A sampler for verl's asynchronous trainers that trains prompts in their order, so that two jobs train equal batches.

`trainer.v1.sampler.custom_sampler` names `InOrder`.
"""

from itertools import takewhile
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync


class InOrder(ReplayBufferAsync):  # type: ignore[misc]
    """verl's own sampler, but for which finished prompts it takes."""

    def _sampleable_terminal_keys(self, partition_id: str, *args: Any) -> set[str]:
        terminal = super()._sampleable_terminal_keys(partition_id, *args)
        return set(takewhile(terminal.__contains__, self.prompt_global_steps[partition_id]))

    def _select_prompt_uids(self, partition_id: str, sampleable_keys: set[str], batch_size: int) -> tuple[Any, ...]:
        _, *snapshots = super()._select_prompt_uids(partition_id, sampleable_keys, batch_size)
        in_order = [prompt for prompt in self.prompt_global_steps[partition_id] if prompt in sampleable_keys]
        return (in_order[:batch_size], *snapshots)
