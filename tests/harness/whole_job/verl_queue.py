"""The message queue of verl's `fully_async`, whose samples are kept in the order in which they are trained."""

import os
from itertools import count
from pathlib import Path
from typing import Any

from harness.whole_job.variables import REPLAYS, SAMPLES


def install() -> None:
    """Keep the trainer's samples, or replay those of another job, because order and age depend on time."""
    from verl.experimental.fully_async_policy.message_queue import MessageQueueClient

    take, folder, places = MessageQueueClient.get_sample, Path(os.environ[SAMPLES]), count()

    async def get_sample(self: Any) -> Any:
        sample, num_waiting = await take(self)
        if sample is None:  # the end
            return None, num_waiting
        file = folder / f"{next(places):03}.pickle"
        if REPLAYS in os.environ:
            return file.read_bytes(), num_waiting
        file.write_bytes(sample)
        return sample, num_waiting

    MessageQueueClient.get_sample = get_sample
