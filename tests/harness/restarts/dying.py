"""How a rank of the restarted training dies: with SIGKILL, when it comes to the point that the run names."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch.distributed as dist

from harness.distributed.deaths import POINTS
from harness.distributed.gpt_job import GptJob
from harness.restarts.run import Notes, Run

INSIDE_BEGIN_STEP = ("agreeing", "exchanging", "written")
INSIDE_MICRO_BATCHES = ("fetching", "sending_gradients")


class Death:
    """The death of one generation, as one rank sees it."""

    def __init__(self, run: Run, generation: int, notes: Notes) -> None:
        self._kill = run.kills[generation] if generation < len(run.kills) else None
        self._notes = notes
        self._is_plain = not run.planner_address
        mine = os.getpid(), dist.get_rank()
        pids: list[Any] = [mine] * dist.get_world_size()
        dist.all_gather_object(pids, mine)
        self._others = [pid for pid, rank in pids if rank != dist.get_rank()]

    def at(self, step: int, stage: str) -> None:
        """Die if this is the point."""
        if self._is_due(step) and self._kill is not None and self._kill.stage == stage:
            self._die(stage)

    @contextmanager
    def in_step(self, step: int, job: GptJob) -> Iterator[None]:
        """Die inside the step's forward, and at points inside the agent, if this rank is due in this step."""
        kill = self._kill
        with ExitStack() as patches:
            if kill is not None and self._is_due(step):
                begun = 0

                def in_forward(*_: Any) -> None:
                    nonlocal begun
                    is_due = begun == kill.micro_batch
                    begun += 1
                    inside = INSIDE_MICRO_BATCHES if self._is_plain else ()
                    if is_due and kill.stage in ("forward", *inside):
                        self._die(kill.stage)

                patches.callback(job.models[0].register_forward_pre_hook(in_forward).remove)
                if kill.stage in POINTS and not self._is_plain:
                    point = POINTS[kill.stage]
                    patches.enter_context(mock.patch.object(point.owner, point.method, self._dying(point, kill.stage)))
            yield

    def plain_opening(self, step: int) -> None:
        """Die where a balanced run would die before the first forward of the step."""
        for stage in ("reported", "scheduled", *INSIDE_BEGIN_STEP):
            self.at(step, stage)

    def missed(self, step: int) -> None:
        """Die at the end of the step if the point inside the agent did not come, because nothing moved in this step."""
        if self._is_due(step) and self._kill is not None and self._kill.stage in POINTS:
            self._die(f"ended ({self._kill.stage} did not come)")

    def _is_due(self, step: int) -> bool:
        return self._kill is not None and (self._kill.step, self._kill.rank) == (step, dist.get_rank())

    def _dying(self, point: Any, stage: str) -> Any:
        plain = getattr(point.owner, point.method)

        def method(*args: Any, **kwargs: Any) -> Any:
            if not point.after:
                self._die(stage)
            plain(*args, **kwargs)
            self._die(stage)

        return method

    def _die(self, stage: str) -> None:
        assert self._kill is not None
        self._notes.note("killed", step=self._kill.step, stage=stage, whole_launch=self._kill.whole_launch)
        victims = [os.getpid()]
        if self._kill.whole_launch:
            launcher = [os.getppid()] if "TORCHELASTIC_RUN_ID" in os.environ else []
            victims = [*launcher, *self._others, *victims]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
