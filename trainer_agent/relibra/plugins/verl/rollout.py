"""`install_in_rollout`: report each sample of verl's agent loops where it finishes, while others are generated.

No file of verl is changed. The driver's `AgentLoopManager._init_agent_loop_workers` is wrapped: before it starts its
workers, `_agent_loop_postprocess` of their class is wrapped, which takes what each agent loop returns. Ray sends the
class as it is then.
"""

import functools
import sys
from typing import Any

from relibra.plugins.points import check_points
from relibra.plugins.rollout_stream import stream
from relibra.plugins.verl import points

_MODULE = "verl.experimental.agent_loop.agent_loop"


def install_in_rollout() -> None:
    """Wrap the manager of agent loops that this process has loaded. Processes other than the driver start none.

    Raises:
        Unsupported: this version of verl lacks something that the plug-in relies on; the message names it.
    """
    module = sys.modules.get(_MODULE)
    if module is None:
        return
    check_points(module, points.AGENT_LOOP, version=points.VERSION, without="relibra from external_lib")
    manager = module.AgentLoopManager
    start = manager._init_agent_loop_workers

    @functools.wraps(start)
    async def _init_agent_loop_workers(self: Any) -> None:
        worker = self.agent_loop_workers_class.__ray_metadata__.modified_class
        if not hasattr(worker._agent_loop_postprocess, "relibra_reports"):
            worker._agent_loop_postprocess = _reporting(worker._agent_loop_postprocess)
        await start(self)

    manager._init_agent_loop_workers = _init_agent_loop_workers


def _reporting(take: Any) -> Any:
    @functools.wraps(take)
    async def _agent_loop_postprocess(self: Any, output: Any, validate: bool, *args: Any, **kwargs: Any) -> Any:
        if not validate:
            for sample in output if isinstance(output, list) else [output]:
                report(sample)
        return await take(self, output, validate, *args, **kwargs)

    _agent_loop_postprocess.relibra_reports = True  # type: ignore[attr-defined]
    return _agent_loop_postprocess


def report(sample: Any) -> None:
    """Report what an agent loop returned.

    Args:
        sample: an `AgentLoopOutput`, whose routing may have more rows than the sample has tokens.
    """
    tokens = [*sample.prompt_ids, *sample.response_ids]
    routed = sample.routed_experts
    stream().report(tokens, None if routed is None else routed[: len(tokens)])
