"""`install_in_driver`: let relibra choose the data-parallel rank of every sequence, in the driver of a job.

verl's trainers deal a batch to ranks by length, in `_balance_batch`. It runs unchanged; if the user has set `pack`, its
result is dealt once more, and otherwise it stays.
"""

import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from relibra.plugins.settings import packs
from relibra.plugins.verl.configuration import relibra_section

TRAINERS = {"verl.trainer.ppo.ray_trainer": "RayPPOTrainer", "verl.trainer.ppo.v1.trainer_base": "PPOTrainer"}
"""verl's trainers by module, as far as they deal batches. The first is that of `trainer.use_v1=False`."""


def install_in_driver() -> None:
    """Wrap `_balance_batch` of the trainers that this process has loaded. Processes other than the driver have none."""
    for name, trainer in TRAINERS.items():
        module = sys.modules.get(name)
        if (balance := getattr(getattr(module, trainer, None), "_balance_batch", None)) is not None:
            getattr(module, trainer)._balance_batch = _dealing_again(balance, sys.modules[name])


def _dealing_again(balance: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    @functools.wraps(balance)
    def _balance_batch(
        self: Any, batch: Any, metrics: Any, logging_prefix: str = "global_seqlen", *more: Any, **named: Any
    ) -> Any:
        balanced = balance(self, batch, metrics, logging_prefix, *more, **named)
        if packs(relibra_section(self.config), os.environ):
            from relibra.plugins.verl.dealer import Dealer

            dealer = vars(self).setdefault("relibra_dealer", Dealer(self))
            # The newer trainer returns another batch, the older one changes the batch that it was given.
            dealer.deal(batch if balanced is None else balanced, module, metrics, logging_prefix)
        return balanced

    return _balance_batch
