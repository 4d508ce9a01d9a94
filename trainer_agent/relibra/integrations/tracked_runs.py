"""The runs of Weights & Biases, MLflow and TensorBoard, as something to log steps to. None of them is imported.

Written against wandb 0.31, mlflow 3.17 and the SummaryWriter of tensorboardX 2.6, which is that of torch too:

    wandb.run                  `step`, `define_metric`, `log(figures, commit=...)`
    mlflow.active_run()        `info.run_id`; `mlflow.MlflowClient().log_metric(run_id, name, value, step=...)`
    SummaryWriter              `add_scalar(name, value, step)`
"""

import sys
from collections.abc import Mapping
from typing import Any, Protocol

from relibra.errors import InvalidInput


class TrackedRun(Protocol):
    """A run that takes the figures of steps."""

    name: str
    """What the run belongs to, for messages."""

    def is_free(self) -> bool:
        """Return whether the run takes the figures of another step now."""
        ...

    def log(self, step: int, figures: Mapping[str, float], *, is_last: bool) -> None:
        """Log the figures of one step; `is_last` says that the training logs nothing more."""
        ...


class WandbRun:
    """A run of Weights & Biases.

    Its own step belongs to the training loop, and rises only when the loop logs. Figures are added to the row that the
    loop logs next, one step in each row, and are drawn over `relibra/step`.
    """

    name = "W&B"

    def __init__(self, run: Any) -> None:
        self._run = run
        self._taken_at: int | None = None
        run.define_metric("relibra/step")
        run.define_metric("relibra/*", step_metric="relibra/step")

    def is_free(self) -> bool:
        """Return whether the loop has logged since the last step was taken."""
        return self._taken_at is None or self._run.step != self._taken_at

    def log(self, step: int, figures: Mapping[str, float], *, is_last: bool) -> None:
        """Add the figures to the next row, or to a row of their own at the end."""
        if is_last and not self.is_free():
            self._run.log({}, commit=True)  # ends the row that waits for the loop
        self._taken_at = self._run.step
        self._run.log({"relibra/step": step, **figures}, commit=is_last)


class MlflowRun:
    """A run of MLflow."""

    name = "MLflow"

    def __init__(self, run: Any) -> None:
        # The active run is that of the calling thread.
        self._run_id = run.info.run_id
        self._client = sys.modules["mlflow"].MlflowClient()

    def is_free(self) -> bool:
        """Return True."""
        return True

    def log(self, step: int, figures: Mapping[str, float], *, is_last: bool) -> None:
        """Log the figures."""
        for name, value in figures.items():
            self._client.log_metric(self._run_id, name, float(value), step=step)


class TensorBoardWriter:
    """A `SummaryWriter` of TensorBoard."""

    name = "TensorBoard"

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def is_free(self) -> bool:
        """Return True."""
        return True

    def log(self, step: int, figures: Mapping[str, float], *, is_last: bool) -> None:
        """Log the figures."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)


def tracked_run(run: Any) -> TrackedRun:
    """Return a run as something to log to.

    Raises:
        InvalidInput: the run is none of W&B, MLflow and TensorBoard.
    """
    if hasattr(run, "define_metric"):
        return WandbRun(run)
    if hasattr(run, "add_scalar"):
        return TensorBoardWriter(run)
    if hasattr(getattr(run, "info", None), "run_id") and "mlflow" in sys.modules:
        return MlflowRun(run)
    raise InvalidInput.of(
        "run", expected="a run of W&B or MLflow, or a SummaryWriter of TensorBoard", got=f"a {type(run).__name__}"
    )


def active_runs() -> list[TrackedRun]:
    """Return the active runs of W&B and MLflow in this process.

    Raises:
        InvalidInput: there is none.
    """
    wandb, mlflow = sys.modules.get("wandb"), sys.modules.get("mlflow")
    active = [getattr(wandb, "run", None), None if mlflow is None else mlflow.active_run()]
    runs = [tracked_run(run) for run in active if run is not None]
    if not runs:
        raise InvalidInput.of(
            "run",
            expected="an active run of W&B or MLflow in this process (call wandb.init or mlflow.start_run first), or "
            "run=<SummaryWriter> for TensorBoard",
            got="none",
        )
    return runs
