"""verl's own agent loop, whose samples are kept in a folder, so that a second job trains on the same samples."""

import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

from harness.whole_job.variables import REPLAYS, SAMPLES

CONFIGURATION = "- name: recorded\n  _target_: harness.whole_job.verl_loop.recorded_loop\n"

_num_begun: Counter[str] = Counter()


def recorded_loop(**settings: Any) -> Any:
    """Return a loop that generates samples and keeps them, or returns those that another job had in the same places."""
    from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

    class RecordedLoop(SingleTurnAgentLoop):  # type: ignore[misc]
        async def run(self, sampling_params: dict[str, Any], **of_sample: Any) -> Any:
            # Samples of one prompt are told apart by the order in which they begin.
            prompt = f"{of_sample['global_steps']}-{of_sample['index']}"
            _num_begun[prompt] += 1
            file = Path(os.environ[SAMPLES], f"{prompt}-{_num_begun[prompt]}.pickle")
            if REPLAYS in os.environ:
                return _read(file)
            output = await super().run(sampling_params, **of_sample)
            _write(file, output)
            return output

    return RecordedLoop(**settings)


def _read(file: Path) -> Any:
    return pickle.loads(file.read_bytes())


def _write(file: Path, output: Any) -> None:
    file.write_bytes(pickle.dumps(output))
