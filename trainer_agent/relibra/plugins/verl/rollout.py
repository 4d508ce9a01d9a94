"""`install_in_rollout`: report each sample of verl's agent loops where it finishes, while others are generated.

No file of verl is changed. A worker of agent loops imports `external_lib` while verl builds it, and from then on its
`_agent_loop_postprocess`, which takes what each agent loop returns, is wrapped.
"""

import functools
import sys
from typing import Any

from relibra.plugins.points import check_points
from relibra.plugins.rollout_stream import stream
from relibra.plugins.verl import points
from relibra.plugins.verl.call_stack import objects_on_the_stack

_MODULE = "verl.experimental.agent_loop.agent_loop"


def install_in_rollout() -> None:
    """Make the worker that verl builds in this process report its samples. Other processes build no worker.

    Raises:
        Unsupported: this version of verl lacks something that the plug-in relies on; the message names it.
    """
    module = sys.modules.get(_MODULE)
    if module is None:
        return
    check_points(module, points.AGENT_LOOP, version=points.VERSION, without="relibra from external_lib")
    for worker in objects_on_the_stack():
        if isinstance(worker, module.AgentLoopWorker):
            worker._agent_loop_postprocess = _reporting(worker._agent_loop_postprocess)
            return


def _reporting(take: Any) -> Any:
    @functools.wraps(take)
    async def _agent_loop_postprocess(output: Any, validate: bool, *args: Any, **kwargs: Any) -> Any:
        if not validate:
            for sample in output if isinstance(output, list) else [output]:
                report(sample)
        return await take(output, validate, *args, **kwargs)

    return _agent_loop_postprocess


def report(sample: Any) -> None:
    """Report what an agent loop returned.

    Args:
        sample: an `AgentLoopOutput`, whose routing may have more rows than the sample has tokens.
    """
    tokens = [*sample.prompt_ids, *sample.response_ids]
    routed = sample.routed_experts
    stream().report(tokens, None if routed is None else routed[: len(tokens)])
