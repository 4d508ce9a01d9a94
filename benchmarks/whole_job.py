"""Run the job of examples/verl_grpo with relibra and without, and keep what verl and the planner say of every step.

On a machine with GPUs, for a model and prompts of your own:

    python -m benchmarks.whole_job runs --set actor_rollout_ref.model.path=... --set data.train_files=...

On a machine without GPUs, `--cpu` runs it with a tiny model, prompts of its own and vLLM on the CPU; `--python` names
the environment that `make test-rollout` builds. The jobs run one after the other, and each samples by itself.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from benchmarks import results
from relibra.demo.services import OwnServices, Services

EXAMPLE = Path(__file__).parents[1] / "examples" / "verl_grpo"
OF_VERL = {
    "reward": "critic/score/mean",
    "loss": "actor/pg_loss",
    "gradient_norm": "actor/grad_norm",
    "engine_against_trainer": "training/rollout_probs_diff_max",
    "device_memory_gb": "actor/perf/max_memory_allocated_gb",
    "update_s": "timing_s/update_actor",
    "step_s": "timing_s/step",
}
"""verl's metrics, by their names in the table."""
OF_RELIBRA = (
    *("step", "level", "applied", "num_fallbacks", "num_replicas", "num_moved_experts"),
    *("imbalance_plain", "imbalance_realised", "plan_latency_s", "plan_wait_s", "duration_s"),
)
"""The fields of a job's history that the table keeps."""
PLAIN, BALANCED = "plain", "balanced"
TRAINING_PROCESS = "ray::WorkerDict"
"""How Ray names verl's training processes."""


def run_on_gpus(folder: Path, planner: str | None, num_steps: int, settings: Sequence[str]) -> None:
    """Run one job to its end; its metrics are in `metrics.jsonl` of the folder.

    Raises:
        subprocess.CalledProcessError: the job failed; its log is in the folder.
    """
    folder.mkdir(parents=True)
    plug_in = "actor_rollout_ref.model.external_lib=null" if planner is None else f"relibra.planner={planner}"
    command = [
        *("bash", str(EXAMPLE / "run.sh"), plug_in),
        *("trainer.project_name=whole", f"trainer.experiment_name={folder.name}"),
        *("trainer.logger=[console,file]", f"trainer.total_training_steps={num_steps}", *settings),
    ]
    environment = {**os.environ, "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl")}
    with (folder / "log").open("w") as log:
        subprocess.run(command, check=True, env=environment, stdout=log, stderr=subprocess.STDOUT)


def run_on_cpu(folder: Path, python: str, planner: str | None, num_steps: int, settings: Sequence[str]) -> None:
    """Run one job as `make test-rollout` does.

    Raises:
        RuntimeError: the job failed; its log is in the folder.
    """
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from harness import child_process
    from harness.whole_job.verl_job import Job

    if not (folder.parent / "model").exists():
        environment = child_process.environment(CUDA_VISIBLE_DEVICES="", VERL_USE_EXTERNAL_MODULES="")
        prepare = [python, "-m", "harness.whole_job.prepare", str(folder.parent)]
        subprocess.run(prepare, check=True, env=environment)
    job = Job(
        folder=folder.parent,
        name=folder.name,
        planner=planner,
        num_steps=num_steps,
        keeps=False,
        settings=tuple(settings),
    )
    if code := job.run(python, timeout_s=24 * 3600.0).code:
        raise RuntimeError(f"the job ended with status {code}; see {folder / 'log'}")


@contextmanager
def noting_memory(metrics: Path) -> Iterator[dict[int, float]]:
    """Note the host memory of all training processes on this machine in GB, by the step that runs."""
    noted, is_over = dict[int, float](), threading.Event()

    def look() -> None:
        while not is_over.wait(2.0):
            num_steps = len(metrics.read_text().splitlines()) if metrics.exists() else 0
            if num_pages := sum(_num_pages(process) for process in Path("/proc").glob("[0-9]*")):
                noted[num_steps + 1] = num_pages * os.sysconf("SC_PAGE_SIZE") / 1e9

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield noted
    finally:
        is_over.set()
        thread.join()


def _num_pages(process: Path) -> int:
    """Return the resident pages of a training process, and 0 of any other and of one that has ended."""
    try:
        is_training = (process / "cmdline").read_text().startswith(TRAINING_PROCESS)
        return int((process / "statm").read_text().split()[1]) if is_training else 0
    except OSError:
        return 0


def steps_of(folder: Path) -> list[dict[str, Any]]:
    """Return what verl says of every step of a job."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{name: json.loads(line)["data"].get(key) for name, key in OF_VERL.items()} for line in lines]


def passes_of(job: str, services: Services) -> list[dict[str, Any]]:
    """Return what the status service says of every pass of a job, first to last."""
    history = services.get(f"/v1/jobs/{job}/history?points=1000")
    return [{name: step[name] for name in OF_RELIBRA} for step in history]


def main() -> None:
    """Run both jobs, show how they ended, and write the table if it is wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where logs and metrics go; it must not exist")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--planner", help="a planner that runs, as host:port, with --status; default: one of its own")
    parser.add_argument("--status", help="the status service that runs beside it, such as http://127.0.0.1:7421")
    parser.add_argument("--cpu", action="store_true", help="run a tiny model on this machine without GPUs")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has verl, with --cpu")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of verl")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/whole_job.json")
    parser.add_argument("--keep", action="store_true", help="leave the pages up until Ctrl-C")
    options = parser.parse_args()
    folder = options.folder.absolute()
    running = Services(options.planner, options.status) if options.planner else None
    with nullcontext(running) if running else OwnServices(folder / "services") as services:
        print(f"pages: {services.status_url}; logs: {folder}/*/log", flush=True)
        rows = list[dict[str, Any]]()
        for name, planner in ((BALANCED, services.planner_address), (PLAIN, None)):
            print(f"{name}: {options.steps} steps", flush=True)
            of_job = folder / name
            with noting_memory(of_job / "metrics.jsonl") as memory:
                if options.cpu:
                    run_on_cpu(of_job, options.python, planner, options.steps, options.set)
                else:
                    run_on_gpus(of_job, planner, options.steps, options.set)
            rows += [
                {"job": name, "step": number, **step, "host_memory_gb": memory.get(number)}
                for number, step in enumerate(steps_of(of_job), 1)
            ]
        passes = passes_of(f"whole-{BALANCED}", services)
        results.show("the last step of both jobs", [row for row in rows if row["step"] == options.steps])
        results.show("the last passes of the balanced job", passes[-4:])
        if options.write:
            print(results.write("whole_job", rows, settings=options.set, cpu=options.cpu, passes=passes))
        if options.keep:
            print(f"pages: {services.status_url}/jobs/whole-{BALANCED}; Ctrl-C ends them", flush=True)
            with suppress(KeyboardInterrupt):
                threading.Event().wait()


if __name__ == "__main__":
    main()
