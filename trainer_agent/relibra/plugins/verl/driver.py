"""`install_in_driver`: what relibra does in the driver of a job, around two methods of verl's trainer.

`fit` runs with a replay buffer that has the next step planned from each batch that it returns. All its sequences are
generated then, and verl puts the rollout engines to sleep and scores the batch before ranks form micro-batches.
`_balance_batch` deals the batch to ranks by length. It runs unchanged; if the user has set `pack`, its result is dealt
once more.
"""

import functools
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from relibra.plugins.points import check_points
from relibra.plugins.rollout_stream import stream
from relibra.plugins.settings import packs
from relibra.plugins.verl import points
from relibra.plugins.verl.configuration import relibra_section
from relibra.plugins.verl.driver_batch import fetch

MODULE = "verl.trainer.ppo.v1.trainer_base"
_TRAINED = "train"
"""The partition of sequences that are trained; those of a validation are in another one."""


def install_in_driver() -> None:
    """Wrap the trainer that this process has loaded, as the driver has alone.

    Raises:
        Unsupported: this version of verl lacks something that the plug-in relies on; the message names it.
    """
    module = sys.modules.get(MODULE)
    if module is None:
        return
    check_points(module, points.TRAINER, version=points.VERSION, without="relibra from external_lib")
    module.PPOTrainer.fit = _submitting(module.PPOTrainer.fit, module)
    module.PPOTrainer._balance_batch = _dealing_again(module.PPOTrainer._balance_batch, module)


def _submitting(fit: Callable[..., Any], module: Any) -> Callable[..., Any]:
    @functools.wraps(fit)
    def fit_submitting(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.config.actor_rollout_ref.rollout.get("enable_rollout_routing_replay"):
            self.replay_buffer.sample = _sampling(self.replay_buffer.sample, module.tq)
        return fit(self, *args, **kwargs)

    return fit_submitting


def _sampling(sample: Callable[..., Any], queue: Any) -> Callable[..., Any]:
    """Return a method of a replay buffer that has a thread submit what it returns."""
    thread = ThreadPoolExecutor(1, "relibra-submit")

    @functools.wraps(sample)
    def sample_submitting(*args: Any, **kwargs: Any) -> Any:
        batch, *metrics = sample(*args, **kwargs)
        if batch.partition_id == _TRAINED:
            tokens = functools.partial(fetch, queue, _TRAINED, tuple(batch.keys), "input_ids")
            thread.submit(stream().submit, tokens)
        return batch, *metrics

    return sample_submitting


def _dealing_again(balance: Callable[..., Any], module: Any) -> Callable[..., Any]:
    @functools.wraps(balance)
    def _balance_batch(
        self: Any, batch: Any, metrics: Any, logging_prefix: str = "global_seqlen", *more: Any, **named: Any
    ) -> Any:
        balanced = balance(self, batch, metrics, logging_prefix, *more, **named)
        if packs(relibra_section(self.config), os.environ):
            from relibra.plugins.verl.dealer import Dealer

            dealer = vars(self).setdefault("relibra_dealer", Dealer(self))
            dealer.deal(balanced, module.tq, metrics, logging_prefix)
        return balanced

    return _balance_batch
