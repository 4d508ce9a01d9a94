"""What `relibra record` left out of a trace, for people and for programs."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from relibra.routing.left_out import LeftOut


def describe_left_out(left_out: Mapping[str, tuple[int, LeftOut]]) -> list[dict[str, Any]]:
    """Return what was left out as JSON values, from the number of sequences taken and what was left out by file."""
    return [
        {
            "source": source,
            "taken": taken,
            "left_out": left.count,
            "causes": [{"count": cause.count, "example": cause.example} for cause in left.causes],
        }
        for source, (taken, left) in left_out.items()
    ]


def print_left_out(left_out: Mapping[str, tuple[int, LeftOut]]) -> None:
    """Say on standard error what was left out, and an example of every cause."""
    console = Console(stderr=True, soft_wrap=True)
    for source, (taken, left) in left_out.items():
        is_most = left.count > taken
        title = "MOST OF THIS FILE IS LEFT OUT" if is_most else "Left out"
        console.print(
            f"{title}: {left.count} of {left.count + taken} in {source}",
            style="bold red" if is_most else "yellow",
            markup=False,
            highlight=False,
        )
        for cause in left.causes:
            console.print(f"  {cause.count} x {cause.example}", markup=False, highlight=False)
