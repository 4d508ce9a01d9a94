"""SkyRL's generator reports each trajectory where it finishes, and has the next step planned when all have.

SkyRL's fully asynchronous trainer calls `generate` for the samples of one prompt, and takes any of them into a step.
Nobody knows a step there before training ranks form its micro-batches.
"""

import asyncio
import functools
from collections.abc import Mapping
from typing import Any

from relibra.plugins.rollout_stream import stream


def report_trajectories(generator: Any, *, generates_steps: bool = True) -> Any:
    """Return a generator that reports what it generates for training.

    A generator without `agent_loop`, or in batches, is left as it is: training ranks report for it.

    Args:
        generator: what `get_generator` of an experiment returned. Its methods are wrapped in place.
        generates_steps: whether a call of `generate` makes all samples of a step.
    """
    if not hasattr(generator, "agent_loop") or getattr(generator, "batched", False):
        return generator
    run, generate = generator.agent_loop, generator.generate

    @functools.wraps(run)
    async def agent_loop(*args: Any, training_phase: str = "train", **named: Any) -> Any:
        output = await run(*args, training_phase=training_phase, **named)
        routed = getattr(output, "rollout_expert_indices", None)
        if training_phase == "train" and routed is not None:
            stream().report([*output.prompt_ids, *output.response_ids], routed)
        return output

    @functools.wraps(generate)
    async def generate_all(input_batch: Mapping[str, Any], *args: Any, **named: Any) -> Any:
        output = await generate(input_batch, *args, **named)
        metadata = input_batch.get("batch_metadata")
        if output.get("rollout_expert_indices") and (metadata is None or metadata.training_phase == "train"):
            both = [*zip(output["prompt_token_ids"], output["response_ids"], strict=True)]
            await asyncio.to_thread(stream().submit, lambda: [[*prompt, *response] for prompt, response in both])
        return output

    generator.agent_loop = agent_loop
    if generates_steps:
        generator.generate = generate_all
    return generator
