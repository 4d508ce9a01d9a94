"""A launch of a whole job on the CPU, and what it leaves, whatever the framework."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any

import torch

from harness import child_process, framework_runs
from harness.whole_job.variables import OUTCOMES, OWN_MACHINES, RECEIVED, REPLAYS, SAMPLES

PROMPTS_OF_STEP, SAMPLES_OF_PROMPT = 4, 4
PROMPT, RESPONSE = 48, 24
NUM_STEPS = 3
_OF_ONE_PASS = 1e-3
"""The most by which numbers of a step differ that follow from weights which differ by rounding."""
_CANCELLED = 1e-6
"""The most by which a loss differs that is zero but for rounding: advantages of about one cancel in its mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a job has left."""

    folder: Path
    code: int | None
    """The status with which it ended, None if it ran past its time."""

    @property
    def log(self) -> str:
        """What all processes printed."""
        return (self.folder / "log").read_text()

    @property
    def said(self) -> list[str]:
        """The lines of relibra in all processes, without what the framework puts before them."""
        return re.findall(r"(?:\d{3}:|\[0m )(relibra[: ].*)", self.log)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of every step."""
        file = self.folder / "metrics.jsonl"
        return [json.loads(line)["data"] for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def outcomes(self) -> list[list[dict[str, Any]]]:
        """What became of the plan of every pass, by rank; nothing of a job without the plug-in."""
        files = sorted((self.folder / "outcomes").glob("rank*.jsonl"))
        return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]

    def received(self) -> list[dict[str, Any]]:
        """Return the weights that the first engine got, update by update."""
        return [torch.load(file) for file in sorted((self.folder / "received").glob("*.pt"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch(ABC):
    """One launch.

    Args:
        folder: what `prepare` has written.
        name: the job; its own files are in a folder of that name.
        planner: the planner, None for the framework alone.
        replays: the job on whose samples it trains. None: it keeps its own.
        num_steps: the steps after which it ends.
        own_machines: whether every training process says that it is on a machine of its own, so that experts move.
        keeps: whether samples, and the weights that a server gets, stay in the folder.
        settings: more settings of the framework.
    """

    folder: Path
    name: str
    planner: str | None = None
    replays: str | None = None
    num_steps: int = NUM_STEPS
    own_machines: bool = False
    keeps: bool = True
    settings: tuple[str, ...] = ()

    @property
    def own(self) -> Path:
        """The folder of this job's own files."""
        return self.folder / self.name

    @abstractmethod
    def command_line(self) -> list[str]:
        """Return the command, as a user writes it but for sizes that fit a CPU."""

    @abstractmethod
    def variables(self) -> Mapping[str, str]:
        """Return the environment variables that the framework needs."""

    def run(self, python: str, timeout_s: float = 600.0) -> Outcome:
        """Run the job to its end."""
        own = self.own
        own.mkdir()
        outcomes, samples = own / "outcomes", self.folder / (self.replays or self.name) / "samples"
        outcomes.mkdir()
        samples.mkdir(exist_ok=True)
        environment = child_process.environment(
            OMP_NUM_THREADS="1",
            TORCHDYNAMO_DISABLE="1",
            HF_HUB_OFFLINE="1",
            RAY_enable_worker_prestart="0",
            VLLM_CPU_KVCACHE_SPACE="1",
            VLLM_CPU_OMP_THREADS_BIND="nobind",
            VLLM_NO_USAGE_STATS="1",
            VLLM_PLUGINS="none",
            **self.variables(),
            **({SAMPLES: str(samples), RECEIVED: str(own / "received")} if self.keeps else {}),
            **({} if self.planner is None else {OUTCOMES: str(outcomes)}),
            **({REPLAYS: "1"} if self.replays else {}),
            **({OWN_MACHINES: "1"} if self.own_machines else {}),
        )
        environment.pop("CUDA_VISIBLE_DEVICES", None)  # a Ray that takes GPUs on trust refuses more than it names
        environment["PATH"] = f"{Path(python).parent}:{environment['PATH']}"
        code = framework_runs.run_to_log(self.command_line(), own / "log", environment, timeout_s, cwd=own)
        return Outcome(folder=own, code=code)


def check_ended(outcome: Outcome) -> None:
    """Check that a job that keeps its samples ended well, after all its steps."""
    assert outcome.code == 0, outcome.log[-5000:]
    assert len(outcome.metrics) == NUM_STEPS
    num_samples = NUM_STEPS * PROMPTS_OF_STEP * SAMPLES_OF_PROMPT
    assert len(list(outcome.folder.glob("samples/*.pickle"))) == num_samples


def check_planned(outcome: Outcome) -> None:
    """Check that both ranks applied a plan with replicas in every pass, of which a step has two."""
    assert len(outcome.outcomes) == 2
    for of_rank in outcome.outcomes:
        assert len(of_rank) == 2 * NUM_STEPS, "a pass over old log-probabilities and an update in every step"
        assert all(of_pass["is_applied"] for of_pass in of_rank), of_rank
        assert all(of_pass["num_replicas"] for of_pass in of_rank), of_rank


def check_said(outcome: Outcome, *beginnings: str) -> None:
    """Check that relibra logged what it should, and nothing else: the check also fails on a false alarm."""
    for beginning in beginnings:
        assert any(line.startswith(beginning) for line in outcome.said), (beginning, outcome.said)
    assert all(line.startswith(beginnings) for line in outcome.said), outcome.said


def check_alike(planned: Mapping[str, float], own: Mapping[str, float], names: Sequence[str]) -> None:
    """Check that a step of a balanced job has the numbers of the same step without relibra, but for rounding."""
    for name in names:
        assert isclose(planned[name], own[name], rel_tol=_OF_ONE_PASS, abs_tol=_CANCELLED), (name, planned, own)
