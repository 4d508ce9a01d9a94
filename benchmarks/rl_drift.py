"""How far RL moves routing from step to step, and what that costs plans from history: a whole job, recorded.

    python -m benchmarks.rl_drift                               # measure the recording in rl_drift.npz
    python -m benchmarks.rl_drift FOLDER --python PYTHON        # record it first, with the environment of test-rollout

The job is that of docs/whole-job.md without relibra, with 8 samples of each of 4 prompts in a step: verl, vLLM and a
tiny Qwen3-MoE with random weights. Its 64 prompts come in the same order every 16 steps, a *round*. So two steps 16
apart have the same prompts, and differ by what was learned between them and by sampling; neighbours also differ in
their prompts. Figures are means over the steps of a round:

- `sigma`, `sigma_first`: the standard deviation of the change in log-popularity of an expert since the round before,
  and since the first, over whole rounds of 512 sequences. `sigma_sampling`: what sampling alone would make of it;
- `plain`, `replay`: the imbalance of plain expert parallelism, and of plans that know the micro-batches;
- `history`: that of plans that know the four steps before, as relibra's do, whose prompts are others;
- `round_before`, `first_round`: that of plans that know the step with the same prompts, a round before or in the first.

Writes `results/rl_drift.json` and the table of docs/simulation.md.

N steps, P rounds, S sequences, L layers, E experts.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import results
from benchmarks.evaluation.page import markdown, write_tables
from relibra.planning import Cluster, Model, Schedule, StepLoad, imbalance
from relibra.planning.expected.loads import seen_load
from relibra.planning.expected.realised import realised_loads
from relibra.planning.plan import Level
from relibra.planning.solve import solve

RECORDING = Path(__file__).with_suffix(".npz")
PAGE = Path(__file__).parents[1] / "docs" / "simulation.md"
NUM_STEPS, ROUND = 100, 16
_MODEL = Model(num_layers=4, num_experts=16, top_k=4)
_CASES = ((1, 4), (2, 2))
"""Nodes of 8 ranks and micro-batches: a rank has one sequence in each."""
_SETTINGS = ("actor_rollout_ref.actor.optim.lr=6e-5", "actor_rollout_ref.rollout.n=8")
_COLUMNS = ("plain", "history", "round_before", "first_round", "replay")


def record(folder: Path, python: str) -> None:
    """Run the job, and write its counts `[N, S, L, E]` and rewards `[N]`.

    Raises:
        SystemExit: the job failed; its log is in the folder.
    """
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from harness import child_process
    from harness.whole_job.verl_job import Job

    folder = folder.absolute()
    folder.mkdir(parents=True)
    environment = child_process.environment(CUDA_VISIBLE_DEVICES="", VERL_USE_EXTERNAL_MODULES="")
    subprocess.run([python, "-m", "harness.whole_job.prepare", str(folder)], check=True, env=environment)
    job = Job(folder=folder, name="drift", num_steps=NUM_STEPS, settings=_SETTINGS)
    outcome = job.run(python, timeout_s=24 * 3600.0)
    if outcome.code:
        raise SystemExit(f"the job ended with status {outcome.code}; see {outcome.folder / 'log'}")
    arguments = [str(outcome.folder / "samples"), str(folder / "counts.npz"), str(_MODEL.num_experts)]
    subprocess.run([python, "-m", "harness.whole_job.counts", *arguments], check=True, env=environment)
    with np.load(folder / "counts.npz") as file:
        rewards_N = np.array([step["critic/score/mean"] for step in outcome.metrics])
        np.savez_compressed(RECORDING, counts=file["counts"], rewards=rewards_N)


def round_of(
    counts_NSLE: NDArray[np.integer], number: int, cluster: Cluster, num_micro_batches: int
) -> dict[str, float]:
    """Return the imbalances of a round, means over its steps; rounds count from 0, and the first has none before it."""
    schedule = Schedule.round_robin(counts_NSLE.shape[1], num_micro_batches, cluster)
    loads = [StepLoad.of(counts_SLE, schedule, cluster) for counts_SLE in counts_NSLE]

    def foreseen(step: int, known: Sequence[int]) -> float:
        seen = seen_load(np.concatenate([loads[each].load_MLE for each in known]), cluster)
        plan = solve(loads[step], schedule, _MODEL, cluster, level=Level.HISTORY, seen=seen)
        return imbalance(realised_loads(plan, loads[step]))

    rows = []
    for step in range(number * ROUND, (number + 1) * ROUND):
        plan = solve(loads[step], schedule, _MODEL, cluster)
        rows.append(
            {
                "plain": plan.prediction.imbalance_before,
                "history": foreseen(step, range(step - 4, step)),
                "round_before": foreseen(step, [step - ROUND]),
                "first_round": foreseen(step, [step % ROUND]),
                "replay": imbalance(realised_loads(plan, loads[step])),
            }
        )
    return {name: float(np.mean([row[name] for row in rows])) for name in _COLUMNS}


def sigma(before_LE: NDArray[np.integer], now_LE: NDArray[np.integer]) -> float:
    """Return the standard deviation of the experts' change in log-popularity."""
    share_LE, was_LE = (counts_LE / counts_LE.sum(axis=1, keepdims=True) for counts_LE in (now_LE, before_LE))
    return float(np.log(share_LE / was_LE).std())


def _rows() -> Iterator[dict[str, object]]:
    with np.load(RECORDING) as file:
        counts_NSLE, rewards_N = file["counts"].astype(np.int64), file["rewards"]
    num_rounds = len(counts_NSLE) // ROUND
    counts_PNSLE = counts_NSLE[: num_rounds * ROUND].reshape(num_rounds, ROUND, *counts_NSLE.shape[1:])
    total_PLE = counts_PNSLE.sum(axis=(1, 2))
    for num_nodes, num_micro_batches in _CASES:
        cluster = Cluster(num_nodes=num_nodes, gpus_per_node=8, redundant_slots=2)
        for number in range(1, num_rounds):
            halves = (counts_PNSLE[number, :, half::2].sum(axis=(0, 1)) for half in (0, 1))
            yield {
                "num_nodes": num_nodes,
                "num_micro_batches": num_micro_batches,
                "first": number * ROUND + 1,
                "last": (number + 1) * ROUND,
                "reward": float(rewards_N[number * ROUND : (number + 1) * ROUND].mean()),
                "sigma": sigma(total_PLE[number - 1], total_PLE[number]),
                "sigma_first": sigma(total_PLE[0], total_PLE[number]),
                "sigma_sampling": sigma(*halves) / 2**0.5,
                **round_of(counts_NSLE, number, cluster, num_micro_batches),
            }


def rl_drift() -> str:
    """Return the results on disk as a table."""
    lines = [
        (
            f"{row['num_nodes']}x8",
            f"{row['first']} to {row['last']}",
            f"{row['reward']:.2f}",
            f"{row['sigma']:.2f}",
            f"{row['sigma_first']:.2f}",
            *(f"{row[name]:.3f}" for name in _COLUMNS),
        )
        for row in results.read("rl_drift")
    ]
    headings = ("plain", "steps before", "a round before", "in the first round", "replay")
    return markdown(("ranks", "steps", "reward", "sigma", "sigma, first", *headings), lines)


def main() -> None:
    """Record if a folder is given; measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="where the job's files go; it must not exist")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has verl and vLLM")
    options = parser.parse_args()
    if options.folder is not None:
        record(options.folder, options.python)
    rows = list(_rows())
    results.show("drift of routing in a whole job", rows)
    results.write("rl_drift", rows, redundant_slots=2, settings=_SETTINGS)
    write_tables(PAGE, {"rl_drift": rl_drift})


if __name__ == "__main__":
    main()
