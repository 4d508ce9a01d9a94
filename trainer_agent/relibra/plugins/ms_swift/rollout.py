"""ms-swift's trainer reports each sample of its own vLLM where it finishes, while others are generated.

With `--vllm_mode colocate`, each rank has an engine, and runs its steps itself: `step` of vLLM's engine is wrapped. A
server (`--vllm_mode server`) hands over all samples together, and then training ranks report them.
"""

import functools
from collections.abc import Callable
from typing import Any

from relibra.plugins.rollout_stream import RolloutStream


def report_finished(engine: Any, stream: RolloutStream, is_training: Callable[[], bool]) -> None:
    """Report what an engine generates for training from now on. When the last sample ends, the planner has all.

    Args:
        engine: a `vllm.LLMEngine`. Its method is wrapped in place.
        stream: reports them.
        is_training: returns whether samples are for training.
    """
    run = engine.step

    @functools.wraps(run)
    def step(*args: Any, **kwargs: Any) -> Any:
        outputs = run(*args, **kwargs)
        if is_training():
            for output in outputs:
                if output.finished:
                    _report(stream, output)
            if not engine.has_unfinished_requests():
                stream.flush()
        return outputs

    engine.step = step


def _report(stream: RolloutStream, output: Any) -> None:
    """Report a `RequestOutput` of vLLM, which has the routes of its samples on the first tensor-parallel rank alone."""
    for sample in output.outputs:
        routed = getattr(sample, "routed_experts", None)
        stream.report([*output.prompt_token_ids, *sample.token_ids], routed)
