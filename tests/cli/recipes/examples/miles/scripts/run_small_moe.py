"""A launcher in the way of miles' `scripts/`."""

from dataclasses import dataclass
from typing import Literal

import typer

import miles.utils.external_utils.command_utils as U  # not installed here, and not needed


@dataclass(frozen=True)
class _Cell:
    tp: int
    recompute: bool = True


_CELLS = {"H100": _Cell(tp=4), "GB200": _Cell(2, recompute=False)}


@dataclass
class ScriptArgs(U.ExecuteTrainConfig):
    model_name: str = "Qwen3-30B-A3B"
    hardware: Literal["H100", "GB200"] = "H100"
    enable_fp8: bool = False
    extra_args: str = ""

    @property
    def cell(self) -> _Cell:
        return _CELLS[self.hardware]

    def __post_init__(self):
        self.checkpoint = f"/models/{self.model_name}"


def _prepare(args: ScriptArgs):
    U.exec_command(f"hf download {args.model_name} --local-dir {args.checkpoint}")


def execute(args: ScriptArgs):
    perf_args = (
        f"--hf-checkpoint {args.checkpoint} "
        f"--tensor-model-parallel-size {args.cell.tp} "
        "--expert-model-parallel-size 8 --expert-tensor-parallel-size 1 --delay-wgrad-compute "
    )
    if args.cell.recompute:
        perf_args += "--recompute-granularity full "
    match args.hardware:
        case "H100":
            perf_args += "--optimizer-cpu-offload "
        case _:
            pass
    fp8_args = "--fp8-format e4m3 " if args.enable_fp8 else ""
    U.execute_train(
        train_args=f"{perf_args}{fp8_args}{U.get_default_wandb_args(__file__)}{args.extra_args}",
        config=args,
        megatron_model_type="small-moe",
    )


@U.dataclass_cli
def main(args: ScriptArgs):
    _prepare(args)
    execute(args)


if __name__ == "__main__":
    typer.run(main)
