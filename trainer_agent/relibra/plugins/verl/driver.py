"""`install_in_driver`: what relibra does in the driver of a job, around two methods of verl's trainer.

`fit` runs with a replay buffer that has the next step planned from each batch that it returns. All its sequences are
generated then, and verl puts the rollout engines to sleep and scores the batch before ranks form micro-batches.
`_balance_batch` deals the batch to ranks by length, before the first pass. It runs unchanged; if the user has set
`pack`, its result is dealt once more. It returns once the step is submitted: a pass waits for no plan that nobody asked
for.
"""

import functools
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
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
_SUBMISSION_S = 1.0
"""The longest time that the driver waits until the planner has a step; it takes 0.1 s, beside what verl does then."""


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
            submissions = vars(self).setdefault("relibra_submissions", _Submissions())
            self.replay_buffer.sample = _sampling(self.replay_buffer.sample, module.tq, submissions)
        return fit(self, *args, **kwargs)

    return fit_submitting


class _Submissions:
    """The batches of a driver on their way to the planner, from a thread: the driver has other things to do."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "relibra-submit")
        self._last: Future[bool] | None = None
        self._is_worth_a_wait = False

    def submit(self, tokens: Callable[[], Any]) -> None:
        """Submit a batch."""
        self._is_worth_a_wait = self._last is None or (self._last.done() and self._last.result())
        self._last = self._thread.submit(stream().submit, tokens)

    def wait(self) -> None:
        """Wait until the planner has the last batch, but not if it does not have the one before."""
        if self._last is not None and self._is_worth_a_wait:
            wait([self._last], _SUBMISSION_S)


def _sampling(sample: Callable[..., Any], queue: Any, submissions: _Submissions) -> Callable[..., Any]:
    """Return a method of a replay buffer that submits what it returns."""

    @functools.wraps(sample)
    def sample_submitting(*args: Any, **kwargs: Any) -> Any:
        batch, *metrics = sample(*args, **kwargs)
        if batch.partition_id == _TRAINED:
            submissions.submit(functools.partial(fetch, queue, _TRAINED, tuple(batch.keys), "input_ids"))
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
        if (submissions := vars(self).get("relibra_submissions")) is not None:
            submissions.wait()
        return balanced

    return _balance_batch
