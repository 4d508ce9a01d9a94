"""`relibra doctor`: check services, packages and hardware, and say how to fix problems."""

from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from relibra.cli.checks import gpu, megatron, packages, planner, recipe, redis, status, topology
from relibra.cli.checks.finding import CheckResult, Finding
from relibra.cli.output import AsJson, open_console, print_json, working
from relibra.cli.recipes.frameworks.registry import Framework
from relibra.cli.service import OptionalRedisUrl

_COLOURS = {
    CheckResult.OK: "green",
    CheckResult.WARNING: "yellow",
    CheckResult.FAILED: "bold red",
    CheckResult.SKIPPED: "dim",
}


def doctor(
    redis_url: OptionalRedisUrl = None,
    planner_address: Annotated[
        str | None, typer.Option("--planner", envvar="RELIBRA_PLANNER", help="Planner (host:port).")
    ] = None,
    url: Annotated[str | None, typer.Option(envvar="RELIBRA_STATUS_URL", help="URL of the status service.")] = None,
    recipe_file: Annotated[
        Path | None,
        typer.Option(
            "--recipe",
            help="Bash launcher or YAML configuration of a training, or its arguments as .txt. A launcher runs without "
            "its programs.",
        ),
    ] = None,
    framework: Annotated[
        Framework | None, typer.Option(help="Framework of the recipe; without it, the file must tell.")
    ] = None,
    variables: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE: a variable or option that the recipe takes from outside. Repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check services, package versions, GPUs, GPU links, megatron-core and recipes, and say how to fix problems.

    Changes nothing: a launcher runs in restricted bash, which starts no program and writes no file. Exits with status 1
    if a check fails.
    """
    ours = version("relibra")
    checks: dict[str, Callable[[], list[Finding]]] = {
        "Redis": lambda: redis.examine(redis_url),
        "the planner": lambda: planner.examine(planner_address, ours),
        "the status service": lambda: status.examine(url, ours),
        "versions": packages.examine,
        "GPUs": gpu.examine,
        "GPU links": topology.examine,
        "megatron-core": megatron.examine,
        "the recipe": lambda: recipe.examine(recipe_file, framework, variables or []),
    }
    findings: list[Finding] = []
    with working(on="checking") as now:
        for name, examine in checks.items():
            now(f"checking {name}")
            findings += examine()
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        _print(open_console(), findings)
    if any(finding.verdict is CheckResult.FAILED for finding in findings):
        raise typer.Exit(1)


def _print(console: Console, findings: list[Finding]) -> None:
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        line = Text(f"{finding.verdict:<8}", style=_COLOURS[finding.verdict])
        line.append(f"{finding.subject:<{width}}  {finding.reason}", style="default")
        if finding.fix:
            line.append(f"\n{'':<8}{'':<{width}}  fix: {finding.fix}", style="default")
        if finding.cost:
            line.append(f"\n{'':<8}{'':<{width}}  cost: {finding.cost}", style="default")
        console.print(line, soft_wrap=True)
