"""`relibra demo`: run a real MoE RL job on this machine, plain and balanced, and compare both runs."""

import importlib.util
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from relibra.cli.demo_report import show
from relibra.cli.output import AsJson, open_console, print_json, working
from relibra.cli.status_client import StatusClient
from relibra.errors import InvalidInput, Unsupported


def demo(
    steps: Annotated[int, typer.Option(min=1, help="Number of RL steps in each of the two runs.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights, prompts and samples.")] = 0,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder that keeps logs, Redis data and plans; a temporary one if not given.")
    ] = None,
    planner: Annotated[
        str | None, typer.Option(help="Use this planner (host:port) instead of starting services; needs --status-url.")
    ] = None,
    status_url: Annotated[str | None, typer.Option(help="Status service of that planner (http://host:port).")] = None,
    job_id: Annotated[str, typer.Option(help="Name of the job at the planner.")] = "demo",
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the services, and so the status pages, until Ctrl-C.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a real MoE RL job twice, plain and balanced, and check that balancing works and does not change training.

    Starts four trainer processes (2 nodes x 2 ranks), a rollout worker, planner, Redis and status service on this
    machine, without a GPU. Takes about one minute on two cores. Exits with status 1 if balancing changed training or
    was not as good as planned.
    """
    # Trainers and rollout worker inherit this. The demo runs on the CPU, and megatron would choose any GPU it can see.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if importlib.util.find_spec("megatron") is None:
        raise Unsupported("the demo trains with megatron-core: pip install 'relibra[all]'")
    if (planner is None) != (status_url is None):
        raise InvalidInput.of("--planner", expected="--status-url with it", got="only one of the two")
    from relibra.demo.comparison import compare, judge
    from relibra.demo.job import Job, StepRecord, end, register
    from relibra.demo.services import OwnServices, Services
    from relibra.demo.shape import Registration
    from relibra.wire.launch import process_name

    console = open_console(stderr=as_json)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit)  # unwinds the stack, which stops trainers and services
    with ExitStack() as stack:
        folder = data_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relibra-demo-")))
        with working("look for the services", console) as now:
            if planner is not None and status_url is not None:
                StatusClient(status_url).get("readyz")  # it is needed after minutes; a wrong address shows now
                services = Services(planner, status_url)
            else:
                from relibra.planner.solve.solving import warm_up

                now("compile the solver, unless that was done")
                warm_up()  # numba keeps the result on disk, so only the first demo waits
                now("start the services")
                services = stack.enter_context(OwnServices(folder))
            console.print(f"planner  {services.planner_address}\nstatus   {services.status_url}\n")
            registration = Registration(services.planner_address, job_id, attempt=process_name())
            register(registration)

            def train(name: str, recorded: Sequence[StepRecord] = ()) -> tuple[list[StepRecord], float]:
                """Run all steps; return them with the mean seconds of one."""
                run_folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relibra-run-"))) / name
                job = Job(run_folder, registration, balanced=name == "balanced", seed=seed)
                now(f"{name}: start trainers")
                with job:
                    records = []
                    start_s = time.monotonic()
                    for step in range(steps):
                        now(f"{name}: step {step + 1} of {steps}")
                        records.append(job.step(step, recorded[step].batch if recorded else None))
                    return records, (time.monotonic() - start_s) / steps

            plain, plain_step_s = train("plain")
            balanced, balanced_step_s = train("balanced", plain)
            end(registration)
            now("compare")
            comparisons = []
            for step, (plain_record, balanced_record) in enumerate(zip(plain, balanced, strict=True)):
                shown = f"/v1/jobs/{job_id}/steps/{step}"
                prediction, reports = services.get(f"{shown}/plan")["prediction"], services.get(f"{shown}/reports")
                comparisons.append(compare(step, plain_record, balanced_record, prediction, reports))
            comparison = judge(comparisons)
        if as_json:
            print_json(asdict(comparison))
        else:
            show(console, comparison, plain_step_s, balanced_step_s)
        if keep:
            console.print(f"\nThe services are running: open {services.status_url}. Ctrl-C stops them.")
            _wait_for_interrupt()
        elif planner is None and not as_json:
            console.print(
                "\nTo keep the status pages open after the demo, add --keep (make demo ARGS=--keep).", soft_wrap=True
            )
    raise typer.Exit(0 if comparison.passed else 1)


def _exit(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def _wait_for_interrupt() -> None:
    try:
        signal.pause()
    except KeyboardInterrupt:
        return
