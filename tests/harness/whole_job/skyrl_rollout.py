"""What the training loop of a job of SkyRL does besides: an environment, samples and metrics that are kept."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import skyrl_gym
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from skyrl.train.utils.tracking import ConsoleLogger
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from harness.whole_job.reward import compute_score
from harness.whole_job.variables import METRICS, REPLAYS, SAMPLES

ENVIRONMENT = "digits"


class Digits(BaseTextEnv):  # type: ignore[misc]
    """An environment of one turn, whose reward is the share of digits."""

    def __init__(self, env_config: Any = None, extras: Any = None) -> None:
        super().__init__()

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """End the trajectory with the reward of a response."""
        reward = compute_score(ENVIRONMENT, action, "")
        return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata={})


def install() -> None:
    """Register the environment, and keep what the variables of this process name."""
    skyrl_gym.register(id=ENVIRONMENT, entry_point=Digits)
    if METRICS in os.environ:
        _keep_metrics(Path(os.environ[METRICS]))
    if SAMPLES in os.environ:
        _keep_samples(Path(os.environ[SAMPLES]))


def _keep_metrics(file: Path) -> None:
    def log(self: Any, data: dict[str, Any], step: int) -> None:
        with file.open("a") as lines:
            lines.write(json.dumps({"step": step, "data": data}, default=float) + "\n")

    ConsoleLogger.log = log


def _keep_samples(folder: Path) -> None:
    """Keep trajectories, or return those that another job had in the same places."""
    run = SkyRLGymGenerator.agent_loop

    async def agent_loop(self: Any, *args: Any, trajectory_id: Any, **named: Any) -> Any:
        file = folder / f"{trajectory_id.instance_id}-{trajectory_id.repetition_id}.pickle"
        if REPLAYS in os.environ:
            return pickle.loads(file.read_bytes())
        output = await run(self, *args, trajectory_id=trajectory_id, **named)
        file.write_bytes(pickle.dumps(output))
        return output

    SkyRLGymGenerator.agent_loop = agent_loop
