"""`relibra demo`: a real MoE RL job on this machine, run plain and balanced, and compared."""

import importlib.util
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from relibra.cli.output import AsJson, print_json
from relibra.errors import InvalidInput, Unsupported

if TYPE_CHECKING:
    from relibra.demo.comparison import RunComparison


def demo(
    steps: Annotated[int, typer.Option(min=1, help="RL steps of each run.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights, prompts and samples.")] = 0,
    data_dir: Annotated[Path | None, typer.Option(help="Keep logs, Redis data and plans here.")] = None,
    planner: Annotated[
        str | None, typer.Option(help="Planner (host:port) to use, instead of services of its own; needs --status-url.")
    ] = None,
    status_url: Annotated[str | None, typer.Option(help="Status service of that planner (http://host:port).")] = None,
    job_id: Annotated[str, typer.Option(help="Name of the job at the planner.")] = "demo",
    keep: Annotated[bool, typer.Option("--keep", help="Leave the services up until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run one real MoE RL job twice, plain and balanced, and prove that balancing works and changes nothing.

    Four trainer processes (2 nodes x 2 ranks), a rollout worker, planner, Redis and status service, all on this
    machine, no GPU. Exits 1 if the balanced run was not neutral or not as balanced as planned.
    """
    # Trainers and rollout worker inherit this. The demo runs on the CPU, and megatron would choose any GPU it can see.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if importlib.util.find_spec("megatron") is None:
        raise Unsupported("the demo trains with megatron-core: pip install 'relibra[all]'")
    if (planner is None) != (status_url is None):
        raise InvalidInput.of("--planner", expected="--status-url beside it", got="one without the other")
    from relibra.demo.comparison import compare, judge
    from relibra.demo.job import Job, StepRecord, register
    from relibra.demo.services import OwnServices, Services
    from relibra.demo.shape import Registration

    console = Console(stderr=as_json)
    with ExitStack() as stack:
        folder = data_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relibra-demo-")))
        if planner is not None and status_url is not None:
            services = Services(planner, status_url)
        else:
            services = stack.enter_context(OwnServices(folder))
        registration = Registration(services.planner_address, job_id)
        register(registration)
        console.print(f"planner  {services.planner_address}\nstatus   {services.status_url}\n")
        runs: dict[str, list[StepRecord]] = {"plain": [], "balanced": []}
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<20}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        ) as progress:
            for name, records in runs.items():
                task = progress.add_task(f"{name}: start", total=steps)
                run_folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relibra-run-"))) / name
                with Job(run_folder, registration, balanced=name == "balanced", seed=seed) as job:
                    for step in range(steps):
                        recorded = runs["plain"][step].batch if name == "balanced" else None
                        records.append(
                            job.step(
                                step,
                                recorded,
                                lambda stage, name=name, task=task: progress.update(  # type: ignore[misc]
                                    task, description=f"{name}: {stage}"
                                ),
                            )
                        )
                        progress.advance(task)
                progress.update(task, description=f"{name}: done")
        comparisons = []
        for step, (plain, balanced) in enumerate(zip(runs["plain"], runs["balanced"], strict=True)):
            shown = f"/v1/jobs/{job_id}/steps/{step}"
            prediction = services.get(f"{shown}/plan")["prediction"]
            comparisons.append(compare(step, plain, balanced, prediction, services.get(f"{shown}/reports")))
        comparison = judge(comparisons)
        if as_json:
            print_json(asdict(comparison))
        else:
            _show(console, comparison)
        if keep:
            console.print(f"\nthe services are up, look at {services.status_url}; Ctrl-C stops them")
            _wait_for_interrupt()
    raise typer.Exit(0 if comparison.passed else 1)


_NEUTRAL_HEADINGS = (
    "step",
    "reward",
    "loss\nplain",
    "loss\nbalanced",
    "norm\nplain",
    "norm\nbalanced",
    "differ\nby",
    "weights\ndiffer",
)
_BALANCED_HEADINGS = (
    "step",
    "plain",
    "planned",
    "balanced",
    "experts\nmoved",
    "replicas",
    "MiB sent\nreorder",
    "MiB sent\nreplicas",
)


def _show(console: Console, comparison: "RunComparison") -> None:
    neutral = [
        (
            f"{each.step}",
            f"{each.reward:.3f}",
            f"{each.plain_loss:+.5f}",
            f"{each.balanced_loss:+.5f}",
            f"{each.plain_grad_norm:.5f}",
            f"{each.balanced_grad_norm:.5f}",
            f"{each.difference:.0e}",
            f"{each.weight_difference:.0e}",
        )
        for each in comparison.steps
    ]
    balanced = [
        (
            f"{each.step}",
            f"{each.plain_imbalance:.3f}",
            f"{each.planned_imbalance:.3f}",
            f"{each.balanced_imbalance:.3f}",
            f"{each.num_moved_experts}",
            f"{each.num_replicas}",
            f"{each.reorder_sent_bytes / 2**20:.1f}",
            f"{each.replica_sent_bytes / 2**20:.1f}",
        )
        for each in comparison.steps
    ]
    console.print(_table("loss and gradient norm", _NEUTRAL_HEADINGS, neutral))
    console.print(_table("imbalance: slowest rank / mean rank, 1.0 is ideal", _BALANCED_HEADINGS, balanced))
    for passed, name, reason in (
        (comparison.neutral, "neutral", comparison.neutral_reason),
        (comparison.balanced, "balanced", comparison.balanced_reason),
    ):
        mark = "[green]yes[/]" if passed else "[bold red]NO[/] "
        console.print(f"{mark} {name}: {reason}", highlight=False, soft_wrap=True)
    num_resampled = sum(each.num_resampled for each in comparison.steps)
    num_active = sum(each.num_moved_experts > 0 and each.num_replicas > 0 for each in comparison.steps)
    console.print(f"    {num_active} of {len(comparison.steps)} steps moved experts and made replicas", highlight=False)
    console.print(
        "    both runs trained on the plain run's rollouts; "
        f"sampling by itself, the balanced run differed in {num_resampled} sequences",
        highlight=False,
        soft_wrap=True,
    )


def _table(title: str, headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE)
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _wait_for_interrupt() -> None:
    import signal

    try:
        signal.pause()
    except KeyboardInterrupt:
        return
