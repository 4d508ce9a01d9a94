"""Points of logical time at which a training dies, drawn from a seed."""

from dataclasses import dataclass
from random import Random

CHECKPOINT = "checkpoint"
"""All files of a checkpoint are written, and nothing names it as the newest yet."""
STAGES = (
    "reported",  # the step's rollouts are durable, and no schedule was submitted
    "scheduled",  # the schedule is submitted, and the rank has not begun the step
    "agreeing",  # inside begin_step, before this rank has said which plan it holds
    "exchanging",  # inside begin_step, while experts travel to their new homes
    "written",  # inside begin_step, after the first experts were written
    "forward",  # before the forward of a micro-batch
    "fetching",  # inside a forward, while replicas travel
    "sending_gradients",  # inside a backward, before gradients of replicas travel home
    "optimizer",  # before the optimizer steps
    "ended",  # after end_step
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """The point at which one rank sends SIGKILL to itself, or to the whole launch."""

    rank: int
    step: int
    stage: str
    micro_batch: int
    """The micro-batch, for the stages inside a forward or backward."""
    whole_launch: bool
    """Whether all ranks and the launcher die, as when pods are deleted; otherwise one rank dies."""


def draw_kills(
    seed: int, number: int, *, num_steps: int, num_ranks: int, num_micro_batches: int, checkpoint_every: int
) -> list[Kill]:
    """Return random points of a training, in the order in which they are reached.

    Args:
        seed: the seed; equal arguments give equal points.
        number: how many points to draw.
        num_steps: the steps of the training.
        num_ranks: its ranks.
        num_micro_batches: the micro-batches of a step.
        checkpoint_every: the steps from one checkpoint to the next; 0 if the training always begins at step 0.
    """
    rng = Random(seed)
    steps = [rng.randrange(num_steps) for _ in range(number)]
    if checkpoint_every:
        steps.sort()  # a training that begins at its newest checkpoint never comes to earlier steps again
    kills = []
    for step in steps:
        # Few steps end with a checkpoint, and few stages of those are while it is written: draw that one more often.
        is_at_checkpoint = checkpoint_every > 0 and (step + 1) % checkpoint_every == 0 and rng.random() < 0.3
        kills.append(
            Kill(
                rank=rng.randrange(num_ranks),
                step=step,
                stage=CHECKPOINT if is_at_checkpoint else rng.choice(STAGES),
                micro_batch=rng.randrange(num_micro_batches),
                whole_launch=rng.random() < 0.5,
            )
        )
    return kills
