"""`python -m harness.restarts.trainer RUN.json`: one rank of a training that dies at given points and starts again.

A launcher starts it: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are in the environment.
"""

import logging
import os
import queue
import shutil
import signal
import sys
import threading
import warnings
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from relibra.demo import megatron_on_cpu

megatron_on_cpu.install()

from megatron.core import parallel_state  # noqa: E402
from megatron.core.dist_checkpointing.strategies import filesystem_async  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402

from harness.distributed import checkpoints  # noqa: E402  (builds on megatron, shims first)
from harness.distributed.gpt_job import GptJob  # noqa: E402
from harness.restarts.balancing import Balancing  # noqa: E402
from harness.restarts.dying import Death  # noqa: E402
from harness.restarts.kills import CHECKPOINT  # noqa: E402
from harness.restarts.run import GENERATION, LAUNCH, NUM_EXPERTS, NUM_MICRO_BATCHES, Notes, Run  # noqa: E402

COLLECTIVE_TIMEOUT_S = 120.0
SAMPLES_PER_GENERATION = 1000


class Trainer:
    """The model, its optimizer and, in a balanced run, the agent and the driver of one rank."""

    def __init__(self, run: Run, generation: int) -> None:
        self._run, self._generation = run, generation
        self._num_rollbacks = 0
        launch = run.launch(int(os.environ[LAUNCH]))
        self._notes = Notes(run.folder, dist.get_rank(), generation)
        self._death = Death(run, generation, self._notes)
        self._notes.note("started", pid=os.getpid(), world_size=dist.get_world_size())
        self._job = GptJob(launch.cluster, num_experts=NUM_EXPERTS)
        self._first = self._load()
        if run.planner_address:
            self._balancing: Balancing | None = Balancing(run, launch.cluster, self._job, self._notes)
        else:
            self._balancing = None
            self._job.replay_without_agent()

    def train(self) -> None:
        """Train from the newest checkpoint to the last step."""
        step = self._first
        while step < self._run.num_steps:
            self._hold(step)
            self._step(step)
            self._save(step)
            step = self._next(step)
        if self._balancing is not None:
            self._balancing.finish()
        self._notes.note("finished")

    def _step(self, step: int) -> None:
        # Rollouts are sampled anew in every generation and after a rollback: other tokens, other routing.
        sample = SAMPLES_PER_GENERATION * (self._generation + self._num_rollbacks) + step
        with self._death.in_step(step, self._job):
            if self._balancing is not None:
                self._balancing.open(step, sample, self._death)
            else:
                self._death.plain_opening(step)
            for chunk in self._job.chunks:
                chunk.zero_grad_buffer()
            self._job.optimizer.zero_grad()
            losses = self._job.run(sample, NUM_MICRO_BATCHES)
            self._death.at(step, "optimizer")
            _, grad_norm, _ = self._job.optimizer.step()
            if self._balancing is not None:
                self._balancing.close()
            self._notes.note("trained", step=step, sample=sample, losses=losses, grad_norm=float(grad_norm))
            self._death.at(step, "ended")
        self._death.missed(step)

    def _next(self, step: int) -> int:
        """Return the step that follows, after going back to the checkpoint before it if it is an earlier one."""
        if self._num_rollbacks or self._run.rollback is None or self._run.rollback[0] != step:
            return step + 1
        self._num_rollbacks += 1
        back_to = self._run.rollback[1]
        checkpoints.load(self._job, self._run.checkpoint(back_to))
        if self._balancing is not None:
            self._balancing.go_back(back_to)
        return back_to

    def _save(self, step: int) -> None:
        every = self._run.checkpoint_every
        if not every or (step + 1) % every:
            return
        folder = self._run.checkpoint(step + 1)
        if dist.get_rank() == 0 and folder.exists():  # a generation that was killed while it saved left it
            shutil.rmtree(folder)
        checkpoints.save(self._job, folder)
        dist.barrier()
        self._death.at(step, CHECKPOINT)
        if dist.get_rank() == 0:
            self._run.set_newest(step + 1)
        dist.barrier()

    def _load(self) -> int:
        """Load the newest checkpoint, if there is one; return the step to begin with."""
        step = self._run.newest()
        if step:
            checkpoints.load(self._job, self._run.checkpoint(step))
        return step

    def _hold(self, step: int) -> None:
        if step == self._run.hold_at and self._generation == 0:
            self._notes.note("holding", step=step)
            while not self._run.may_go_on():
                threading.Event().wait(0.02)


def main(path: Path) -> None:
    """Run one rank, in the environment that its launcher made."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork of torchrun has torchrun's handler
    warnings.simplefilter("ignore")
    logging.basicConfig(level=logging.INFO, format=f"rank {os.environ['RANK']}: %(name)s: %(message)s", force=True)
    for noisy in ("megatron", "torch"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    # By default megatron spawns a helper process for this queue, which imports torch anew and outlives a kill.
    filesystem_async._results_queue = queue.Queue()
    run = Run.load(path)
    generation = int(os.environ[GENERATION]) + int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    dist.init_process_group("gloo", timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S))
    cluster = run.launch(int(os.environ[LAUNCH])).cluster
    parallel_state.initialize_model_parallel(
        expert_model_parallel_size=cluster.num_ranks, expert_tensor_parallel_size=1, distributed_timeout_minutes=2
    )
    model_parallel_cuda_manual_seed(1)
    Trainer(run, generation).train()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
