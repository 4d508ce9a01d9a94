"""`RolloutStream`: rollout processes report each sample where it finishes, while others are still generated.

Nothing here stops a rollout, and while the planner is away it delays one by seconds once a minute at most: what cannot
be reported is reported by training ranks later.
"""

import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from relibra.agent.plans.trouble import Trouble
from relibra.errors import NotFound, NotReady, RelibraError
from relibra.plugins.kept_log import keep_log
from relibra.plugins.rollout_job import RolloutJob, find_rollout_job
from relibra.rollout import RolloutReporter
from relibra.routing.sequence_name import name_sequence
from relibra.routing.sequence_routing import SequenceRouting, sequence_routing
from relibra.wire.client import PlannerClient

log = logging.getLogger(__name__)

_LOOK_S = 5.0
"""How long a process reports for the job that it knows before it looks for another one."""
_TIMEOUT_S = 10.0
_FLUSH_AGAIN_S = 60.0
"""How long nothing waits for the planner after a wait in vain."""
_ARRIVAL_S, _ASK_AGAIN_S = 2.0, 0.1
"""How long the last samples may be on their way to the planner from other processes, and how often it is asked."""


class RolloutStream:
    """Reports the samples of one process. Use it from one thread.

    Args:
        find: returns the job that trains on the samples; None while nobody has registered it.
        otherwise: what follows if a sample is not reported, for the log; `%s` stands for why.
    """

    def __init__(
        self,
        find: Callable[[], RolloutJob | None] = find_rollout_job,
        *,
        otherwise: str = "training ranks report a sample that the rollout did not: %s",
    ) -> None:
        keep_log()
        self._find, self._otherwise = find, otherwise
        self._job: RolloutJob | None = None
        self._looked_s, self._flush_from_s = float("-inf"), 0.0
        self._reporter: RolloutReporter | None = None
        self._planner: PlannerClient | None = None
        self._failed = Trouble("relibra: samples are reported from the rollout again, after %d that were not")

    def report(self, tokens: Any, routed_experts: Any, read: Callable[..., SequenceRouting] = sequence_routing) -> None:
        """Report a sample that has finished; return at once.

        Args:
            tokens: its token ids, prompt and response.
            routed_experts: what the engine recorded of them, as `read` takes it; None if that is nothing.
            read: decodes it, called as `sequence_routing` is.
        """
        if routed_experts is None:
            return
        with_name = functools.partial(self._report, tokens, routed_experts, read)
        self._try(with_name, self._otherwise)

    def submit(self, all_tokens: Callable[[], Sequence[Any]]) -> bool:
        """Have the step that comes next planned from samples, all that it trains on; return whether the planner has it.

        Args:
            all_tokens: returns the token ids of every sample. It is called if a trainer has registered the job.
        """
        message = "the next step is not planned before its micro-batches are known: %s"
        return self._try(lambda: self._submit(all_tokens), message)

    def flush(self) -> None:
        """Wait some seconds until the planner has what was reported; after a wait in vain, not for a minute."""
        reporter = self._reporter
        if reporter is None or time.monotonic() < self._flush_from_s:
            return

        def flush() -> None:
            self._flush_from_s = time.monotonic() + _FLUSH_AGAIN_S
            reporter.flush(_TIMEOUT_S)
            self._flush_from_s = 0.0

        self._try(flush, "training ranks report samples that the planner lacks: %s")

    def close(self) -> None:
        """End the calls to the planner."""
        for client in (self._reporter, self._planner):
            if client is not None:
                client.close()
        self._reporter = self._planner = self._job = None

    def _report(self, tokens: Any, routed_experts: Any, read: Callable[..., SequenceRouting]) -> None:
        job, _, reporter = self._follow()
        routing = read(routed_experts, job.layers, num_tokens=len(tokens))
        reporter.report(None, name_sequence(tokens), routing.routed_TLK)

    def _submit(self, all_tokens: Callable[[], Sequence[Any]]) -> None:
        job, planner, reporter = self._follow()
        names = [name_sequence(tokens) for tokens in all_tokens()]
        reporter.flush(_TIMEOUT_S)
        deadline_s = time.monotonic() + _ARRIVAL_S
        while True:
            try:
                planner.submit_schedule(job.job, None, names)
            except NotFound:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(_ASK_AGAIN_S)
            else:
                return

    def _follow(self) -> tuple[RolloutJob, PlannerClient, RolloutReporter]:
        """Return the job that trains now, with clients for it.

        Raises:
            NotReady: nobody has registered one.
        """
        if self._job is None or time.monotonic() - self._looked_s >= _LOOK_S:
            self._looked_s = time.monotonic()
            job = self._find()
            if job != self._job:
                self.close()
                self._job = job
                if job is not None:
                    self._planner, self._reporter = job.clients(_TIMEOUT_S)
                    log.warning("relibra: samples of job %s are reported to %s where they finish", job.job, job.planner)
        if self._job is None or self._planner is None or self._reporter is None:
            raise NotReady("no training process has registered a job that is balanced")
        return self._job, self._planner, self._reporter

    def _try(self, call: Callable[[], Any], message: str) -> bool:
        """Make a call, and return whether it succeeded; an error costs nothing but time in training."""
        try:
            call()
        except RelibraError as error:
            self._failed.note((type(error).__name__, message), "relibra: " + message, error)
        except Exception as error:  # any error: a rollout must not end because of it
            text = f"{type(error).__name__}: {error}"
            self._failed.note(text, "relibra: " + message, text, level=logging.ERROR, exc_info=True)
        else:
            self._failed.over()
            return True
        return False


@functools.cache
def stream() -> RolloutStream:
    """Return the stream of this process."""
    return RolloutStream()
