"""The tensors that belong to a parameter and must travel with it: the fp32 main copy and the optimizer's moments."""

from collections.abc import Iterable

import torch
from torch import Tensor


class OptimizerState:
    """Finds them in plain, fp32 and mixed-precision megatron optimizers, and in chains of them.

    A parameter's fp32 copy is its `main_param`, set by megatron; the optimizer's state is kept under that copy, or
    under the parameter itself where there is none.
    """

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._optimizers = list(optimizers)

    def tensors_of(self, parameter: Tensor) -> list[Tensor]:
        """Return the tensors beside the parameter itself, in an order equal on all ranks.

        Before the first optimizer step there is no state yet, and only the main copy is returned.
        """
        main = getattr(parameter, "main_param", None)
        tensors = [main] if isinstance(main, Tensor) else []
        key = main if isinstance(main, Tensor) else parameter
        for optimizer in self._optimizers:
            state = optimizer.state.get(key, {})
            tensors += [state[name] for name in sorted(state) if isinstance(state[name], Tensor)]
        return tensors
