"""The tables and verdicts that `relibra demo` prints about its two runs."""

import os
from typing import TYPE_CHECKING

from rich.console import Console

from relibra.cli.output import print_rows

if TYPE_CHECKING:
    from relibra.demo.comparison import RunComparison

_NEUTRAL_HEADINGS = (
    ">step",
    ">reward",
    ">loss\nplain",
    ">loss\nbalanced",
    ">norm\nplain",
    ">norm\nbalanced",
    ">differ\nby",
    ">weights\ndiffer",
)
_BALANCED_HEADINGS = (
    ">step",
    ">plain",
    ">planned",
    ">balanced",
    ">experts\nmoved",
    ">replicas",
    ">MiB sent\nreorder",
    ">MiB sent\nreplicas",
)


def show(console: Console, comparison: "RunComparison", plain_step_s: float, balanced_step_s: float) -> None:
    """Print both comparisons step by step, both verdicts, and the mean time of a step with its caveat."""
    neutral = [
        (
            f"{step.step}",
            f"{step.reward:.3f}",
            f"{step.plain_loss:+.5f}",
            f"{step.balanced_loss:+.5f}",
            f"{step.plain_grad_norm:.5f}",
            f"{step.balanced_grad_norm:.5f}",
            f"{step.difference:.0e}",
            f"{step.weight_difference:.0e}",
        )
        for step in comparison.steps
    ]
    balanced = [
        (
            f"{step.step}",
            f"{step.plain_imbalance:.3f}",
            f"{step.prediction.imbalance_after:.3f}",
            f"{step.balanced_imbalance:.3f}",
            f"{step.prediction.num_moved_experts}",
            f"{step.prediction.num_replicas}",
            f"{step.reorder_sent_bytes / 2**20:.1f}",
            f"{step.replica_sent_bytes / 2**20:.1f}",
        )
        for step in comparison.steps
    ]
    print_rows(console, _NEUTRAL_HEADINGS, neutral, "loss and gradient norm")
    print_rows(console, _BALANCED_HEADINGS, balanced, "imbalance: slowest rank / mean rank, 1.0 is ideal")
    for passed, name, reason in (
        (comparison.neutral, "neutral", comparison.neutral_reason),
        (comparison.balanced, "balanced", comparison.balanced_reason),
    ):
        mark = "[green]yes[/]" if passed else "[bold red]NO[/] "
        console.print(f"{mark} {name}: {reason}", highlight=False, soft_wrap=True)
    num_resampled = sum(step.num_resampled for step in comparison.steps)
    num_active = sum(
        step.prediction.num_moved_experts > 0 and step.prediction.num_replicas > 0 for step in comparison.steps
    )
    console.print(f"    {num_active} of {len(comparison.steps)} steps moved experts and made replicas", highlight=False)
    console.print(
        "    both runs trained on the rollouts of the plain run; "
        f"the balanced run's own samples differed in {num_resampled} sequences",
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        f"    a step took {plain_step_s:.1f} s plain and {balanced_step_s:.1f} s balanced, with planning. This does "
        f"not measure speed: the model is tiny and all processes share the {os.cpu_count()} cores of this machine",
        highlight=False,
        soft_wrap=True,
    )
