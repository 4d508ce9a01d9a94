"""The settings of a training that is killed and started again, and what its ranks write down."""

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from harness.restarts.kills import Kill
from relibra.atomic_file import write_atomically
from relibra.planning import Cluster

Record = dict[str, Any]
NUM_MICRO_BATCHES = 2
NUM_EXPERTS = 12
GENERATION, LAUNCH = "RESTARTS_GENERATION", "RESTARTS_LAUNCH"
"""Environment variables: the generation of the launcher's first workers, and the index of the launcher's start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How the training is arranged from one start of its launcher to the next."""

    cluster: Cluster
    launcher: str = "torchrun"
    """`torchrun`, which starts its workers again by itself; `pods`: one process per rank, as PyTorchJob starts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A training and the points at which it dies.

    A generation is one set of worker processes. Generation g dies at `kills[g]`; the one after the last kill finishes.
    """

    folder: Path
    num_steps: int
    launches: list[Launch]
    """The arrangement of each start of the launcher; later starts repeat the list."""
    kills: list[Kill] = field(default_factory=list)
    checkpoint_every: int = 0
    """The steps from one checkpoint to the next; 0 for none: then every generation begins at step 0."""
    planner_address: str = ""
    """The planner; empty for plain training."""
    job_id: str = "job"
    rollback: tuple[int, int] | None = None
    """The step after which the ranks load an older checkpoint without a restart, and the step of that checkpoint."""
    hold_at: int | None = None
    """The step before which rank 0 waits until the file `go on` is in the folder."""

    def save(self) -> Path:
        """Write the settings into the folder for the trainer; return the file's path."""
        path = self.folder / "run.json"
        path.write_text(json.dumps(asdict(self), default=str))
        return path

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the settings that `save` wrote."""
        fields = json.loads(path.read_text())
        fields["folder"] = Path(fields["folder"])
        fields["launches"] = [
            Launch(cluster=Cluster(**each["cluster"]), launcher=each["launcher"]) for each in fields["launches"]
        ]
        fields["rollback"] = fields["rollback"] and tuple(fields["rollback"])
        fields["kills"] = [Kill(**each) for each in fields["kills"]]
        return cls(**fields)

    def launch(self, index: int) -> Launch:
        """Return the arrangement of the start of the launcher with this index."""
        return self.launches[index % len(self.launches)]

    def checkpoint(self, step: int) -> Path:
        """Return the folder of the checkpoint from which training goes on with `step`."""
        return self.folder / f"checkpoint-{step}"

    def newest(self) -> int:
        """Return the step with which training goes on after the newest whole checkpoint; 0 if there is none."""
        file = self.folder / "newest"
        return int(file.read_text()) if file.exists() else 0

    def set_newest(self, step: int) -> None:
        """Name the newest whole checkpoint."""
        write_atomically(self.folder / "newest", str(step).encode())

    def may_go_on(self) -> bool:
        """Return whether the test lets a training go on that holds."""
        return (self.folder / "go on").exists()

    def records(self, kind: str | None = None) -> list[Record]:
        """Return what all ranks have written down, in the order of time."""
        every = [
            json.loads(line)
            for file in sorted(self.folder.glob("rank*.jsonl"))
            for line in file.read_text().splitlines()
        ]
        return sorted((each for each in every if kind in (None, each["kind"])), key=lambda each: each["at"])


class Notes:
    """The file of one rank. A line is there when `note` returns, even if the process is killed afterwards."""

    def __init__(self, folder: Path, rank: int, generation: int) -> None:
        self._file = os.open(folder / f"rank{rank}.jsonl", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._always = {"rank": rank, "generation": generation}

    def note(self, kind: str, **fields: Any) -> None:
        """Write one record."""
        line = json.dumps({"kind": kind, "at": time.time(), **self._always, **fields}) + "\n"
        os.write(self._file, line.encode())
