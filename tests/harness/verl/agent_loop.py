"""An agent loop of verl that returns recorded samples, and the batch that asks for them.

verl's own manager, workers and postprocessing run; only the engine is missing.
"""

from pathlib import Path
from typing import Any

import numpy as np
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

CONFIGURATION = "- name: recorded\n  _target_: harness.verl.agent_loop.RecordedAgentLoop\n"


class RecordedAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Returns the sample that the batch carries."""

    def __init__(self, **_: Any) -> None:
        """Leave out what prepares verl's own loops: the tokens of a chat template, which the tiny tokenizer lacks."""

    async def run(self, sampling_params: dict[str, Any], **of_sample: Any) -> Any:
        """Return the sample as an agent loop does whose engine recorded routing, without a row for the last token."""
        prompt, response, routed_TLK = of_sample["recorded"]
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=response,
            response_mask=[1] * len(response),
            routed_experts=routed_TLK,
            reward_score=0.0,
            metrics=AgentLoopMetrics(),
        )


def write_configuration(folder: Path) -> Path:
    """Write the file that names the agent loop; return its path."""
    (path := folder / "agent_loop.yaml").write_text(CONFIGURATION)
    return path


def batch_of(samples: list[tuple[list[int], list[int], Any]], *, validate: bool = False) -> Any:
    """Return the batch for which the loop returns these samples: prompt, response and routing."""
    recorded = np.empty(len(samples), dtype=object)
    recorded[:] = samples
    others = {
        "agent_name": np.array(["recorded"] * len(samples), dtype=object),
        "raw_prompt": np.array([[{"role": "user", "content": ""}]] * len(samples), dtype=object),
    }
    return DataProto.from_single_dict({"recorded": recorded, **others}, meta_info={"validate": validate})
