"""`python -m harness.whole_job.counts SAMPLES FILE NUM_EXPERTS`: count the experts that the samples of a job chose.

Reads what `verl_loop` keeps, so it needs verl. Writes `counts`, uint16 `[N, S, L, E]`: steps, sequences of a step in
the order of their prompts, layers, experts.
"""

import pickle
import sys
from pathlib import Path

import numpy as np


def main(samples: Path, file: Path, num_experts: int) -> None:
    """Count all steps and write the file."""
    of_step = dict[int, list[tuple[tuple[int, ...], Path]]]()
    for path in samples.glob("*.pickle"):
        step, *place = map(int, path.stem.split("-"))
        of_step.setdefault(step, []).append((tuple(place), path))
    counts = [[_counts(path, num_experts) for _, path in sorted(of_step[step])] for step in sorted(of_step)]
    np.savez_compressed(file, counts=np.array(counts, dtype=np.uint16))


def _counts(path: Path, num_experts: int) -> np.ndarray:
    routed_TLK = pickle.loads(path.read_bytes()).routed_experts
    return np.stack(
        [np.bincount(routed_TLK[:, layer].ravel(), minlength=num_experts) for layer in range(routed_TLK.shape[1])]
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
