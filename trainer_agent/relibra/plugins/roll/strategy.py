"""ROLL's Megatron strategies with an agent inside: every pass runs under a plan, and no expert moves."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from relibra.agent import Phase
from relibra.errors import InvalidInput
from relibra.plugins.attached_job import attach_job
from relibra.plugins.balanced_passes import BalancedPasses
from relibra.plugins.points import check_points
from relibra.plugins.roll import points
from relibra.plugins.roll.batch import ROUTES, rank_batch
from relibra.plugins.settings import Mode, PluginSettings, job_name
from relibra.routing import read_model_config
from relibra.wire.job_id import nearest_job_id


def install() -> None:
    """Put the strategies of this plug-in in the place of ROLL's in this process. A second call does nothing.

    Raises:
        Unsupported: this version of ROLL lacks something that the plug-in relies on; the message names it.
    """
    from roll.distributed.strategy import megatron_strategy as module

    if hasattr(module.MegatronTrainStrategy, "passes"):
        return
    check_points(module, points.STRATEGY, version=points.VERSION, without=points.OFF)
    for name in ("MegatronTrainStrategy", "MegatronInferStrategy"):
        setattr(module, name, balanced(getattr(module, name)))


def balanced(strategy: type[Any]) -> type[Any]:
    """Return a subclass of a Megatron strategy of ROLL that balances its model.

    Each call of `train_step` or `forward_step` is a step at the planner. The cluster that trains is the job. A strategy
    without an optimizer, as that of the reference, is a job of its own.
    """

    class BalancedStrategy(strategy):  # type: ignore[misc]
        """ROLL's strategy; its own methods run unchanged, between the calls that drive the agent."""

        passes = BalancedPasses()
        """The passes of this strategy, with an agent once the model is built."""

        def initialize(self, *args: Any, **kwargs: Any) -> None:
            """Build the model as ROLL does, and attach an agent to it.

            Raises:
                InvalidInput: a setting is missing or wrong.
                Unsupported: the agent cannot execute the model, the optimizer or a setting of ROLL.
            """
            super().initialize(*args, **kwargs)
            job = job_name(getattr(self.worker.pipeline_config, "exp_name", None), default="roll")
            settings = PluginSettings.read({}, os.environ, default_job=job, may_pack=False)
            layers, models = (
                read_model_config(self.worker_config.model_args.model_name_or_path),
                self.model.get_models(),
            )
            optimizer = getattr(self, "optimizer", None)
            if settings.mode is Mode.BALANCE and settings.reorder == "always":
                expected = "auto or never in ROLL, where no expert moves"
                raise InvalidInput.of("relibra.reorder", expected=expected, got=settings.reorder)
            beside = "" if optimizer is not None else nearest_job_id(self.worker.cluster_name or "reference")
            self.passes = attach_job(settings, layers, models, optimizer, beside=beside, moves=False)
            if self.passes.agent is not None:
                self.forward_backward_func = self._in_a_pass(vars(self)["forward_backward_func"])

        def train_step(self, *args: Any, **kwargs: Any) -> Any:
            """Train as ROLL does, under a plan."""
            metrics = super().train_step(*args, **kwargs)
            self.passes.end()
            return metrics

        def forward_step(self, *args: Any, **kwargs: Any) -> Any:
            """Run a pass without gradients as ROLL does, under a plan."""
            results = super().forward_step(*args, **kwargs)
            self.passes.end()
            return results

        def _in_a_pass(self, schedule: Callable[..., Any]) -> Callable[..., Any]:
            """Return a schedule of megatron that begins a pass, and tells the agent which micro-batch runs."""

            def run(
                *, forward_step_func: Callable[..., Any], data_iterator: Any, forward_only: bool, **of_schedule: Any
            ) -> Any:
                micro_batches = list(data_iterator[0])  # every model chunk has the same
                batch = partial(rank_batch, [each.batch for each in micro_batches], self.passes.layers)
                is_replayed = self.enable_router_replay and ROUTES in micro_batches[0].batch
                phase = Phase.RECOMPUTE if forward_only else Phase.UPDATE
                self.passes.begin(phase, batch if is_replayed else None)
                return schedule(
                    forward_step_func=self.passes.forward_step(forward_step_func),
                    data_iterator=[iter(micro_batches) for _ in data_iterator],
                    forward_only=forward_only,
                    **of_schedule,
                )

            return run

    return BalancedStrategy
