"""Hooks on routers, which count the choices of every micro-batch that trains. No output changes, and nothing waits.

A micro-batch that trains runs a router with gradients. Some ways of recomputation run it a second time, inside the
backward; others run it only there with gradients, and without them before. So the runs outside of backwards count, and
those inside where there are no others. Passes without gradients, as over log-probabilities, do not count.

M micro-batches, L MoE layers of the whole model, E experts.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from relibra.agent.observed.choices import count_choices
from relibra.agent.plans.stopwatch import Clock, Stopwatch


class ChoiceCounter:
    """Counts what the routers of one rank choose.

    Args:
        routers: this rank's routers by layer.
        num_layers: L.
        num_experts: E.
        chosen: reads the choices from the output of a router.
        clock: measures how long the forwards and backwards of a step take.
    """

    def __init__(
        self,
        routers: Mapping[int, nn.Module],
        *,
        num_layers: int,
        num_experts: int,
        chosen: Callable[[Any], Tensor],
        clock: Clock,
    ) -> None:
        self._shape, self._chosen, self._clock = (num_layers, num_experts), chosen, clock
        self._hooks = [
            router.register_forward_hook(lambda _module, _inputs, output, layer=layer: self._note(layer, output))
            for layer, router in routers.items()
        ]
        self._forget()

    def mark(self) -> None:
        """Mark that the step has come this far."""
        self._stopwatch.mark()

    def take(self) -> tuple[NDArray[np.int64], float]:
        """Return the tokens that chose each expert since the last call, `[M, L, E]`, and the seconds that took.

        These are the seconds from the first router to the last mark. The host waits for the device.
        """
        runs = {layer: self._outside.get(layer) or inside for layer, inside in (self._inside | self._outside).items()}
        load_MLE = np.zeros((max(map(len, runs.values()), default=0), *self._shape), dtype=np.int64)
        for layer, counts in runs.items():
            load_MLE[: len(counts), layer] = torch.stack(counts).cpu().numpy()
        elapsed_s = self._stopwatch.elapsed_s
        self._forget()
        return load_MLE, elapsed_s

    def close(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()

    def _forget(self) -> None:
        self._outside: dict[int, list[Tensor]] = {}
        self._inside: dict[int, list[Tensor]] = {}
        self._stopwatch = Stopwatch(self._clock)

    def _note(self, layer: int, output: Any) -> None:
        if not torch.is_grad_enabled():
            return
        is_in_backward = torch._C._current_graph_task_id() != -1
        with torch.no_grad():
            counts_E = count_choices(self._chosen(output), self._shape[1])
        (self._inside if is_in_backward else self._outside).setdefault(layer, []).append(counts_E)
        self._stopwatch.mark()
