"""verl's own agent loop, whose samples are kept in a folder, so that a second job trains on the same samples.

In one step of the synchronous trainer, a server aborts requests, and the samples of that step are kept as JSON too.
"""

import json
import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

from harness.whole_job.variables import REPLAYS, SAMPLES

CONFIGURATION = "- name: recorded\n  _target_: harness.whole_job.verl_loop.recorded_loop\n"
ABORTED_STEP = 2
"""verl's number of the step."""

_num_begun: Counter[str] = Counter()


def recorded_loop(**settings: Any) -> Any:
    """Return a loop that generates samples and keeps them, or returns those that another job had in the same places."""
    from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
    from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

    from harness.whole_job.verl_aborts import AbortingClient, ResumingClient

    class RecordedLoop(SingleTurnAgentLoop):  # type: ignore[misc]
        async def run(self, sampling_params: dict[str, Any], **of_sample: Any) -> Any:
            # Samples of one prompt are told apart by the order in which they begin.
            step = of_sample["global_steps"]
            prompt = f"{step}-{of_sample['index']}"
            _num_begun.update([prompt, f"{step}"])
            file = Path(os.environ[SAMPLES], f"{prompt}-{_num_begun[prompt]}.pickle")
            if REPLAYS in os.environ:
                return _read(file)
            if step != ABORTED_STEP or isinstance(self.server_manager, FullyAsyncLLMServerClient):
                _write(file, output := await super().run(sampling_params, **of_sample))
                return output
            kind = AbortingClient if _num_begun[f"{step}"] == 1 else ResumingClient
            self.server_manager = client = kind(self.server_manager)
            _write(file, output := await super().run(dict(sampling_params), **of_sample))
            _tell(file, prompt=output.prompt_ids, response=output.response_ids, parts=client.parts)
            return output

    return RecordedLoop(**settings)


def _read(file: Path) -> Any:
    return pickle.loads(file.read_bytes())


def _write(file: Path, output: Any) -> None:
    file.write_bytes(pickle.dumps(output))


def _tell(file: Path, **of_sample: Any) -> None:
    file.with_suffix(".json").write_text(json.dumps(of_sample))
