"""ROLL's workers, in whose processes the strategies of this plug-in are in place, and those that generate.

ROLL imports `worker_cls` in the driver too, so nothing here imports megatron-core before a worker builds its model.
"""

from typing import Any

from roll.distributed.executor.worker import Worker
from roll.distributed.scheduler.decorator import Dispatch, register
from roll.pipeline import base_worker
from roll.pipeline.agentic import agentic_actor_pg_worker, agentic_actor_worker
from roll.pipeline.rlvr import actor_pg_worker, actor_worker

from relibra.errors import Unsupported
from relibra.plugins.points import check_points
from relibra.plugins.roll import points
from relibra.plugins.roll.rollout import report_responses
from relibra.plugins.roll.strategy import install

check_points(base_worker, points.ROLLOUT, version=points.VERSION, without=points.OFF)

_STRATEGIES = ("megatron_train", "megatron_infer")


class _Balancing(Worker):  # type: ignore[misc]
    _has_variants = False
    """Whether the loss of the worker follows `pg_variant`, which ROLL's other workers do not read."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def initialize(self, *args: Any, **kwargs: Any) -> None:
        """Build the model as ROLL does, with a strategy that balances it.

        Raises:
            InvalidInput: a setting is missing or wrong.
            Unsupported: the strategy is not one of megatron-core, the loss would not be the one that the configuration
                names, or the agent cannot execute the model or a setting.
        """
        name = self.worker_config.strategy_args.strategy_name
        if name not in _STRATEGIES:
            raise Unsupported(
                f"expected strategy_name to be one of {', '.join(_STRATEGIES)}, because relibra balances no other; "
                f"cluster {self.cluster_name} has {name}: leave out its worker_cls"
            )
        variant = self.worker_config.pg_variant
        if variant is not None and not self._has_variants:
            raise Unsupported(
                f"expected a worker that has pg_variant={variant} for cluster {self.cluster_name}, got "
                f"{type(self).__name__}, which trains with another loss: use RLVRPGWorker or AgenticPGWorker of "
                "relibra.integrations.roll as worker_cls, or leave out pg_variant"
            )
        install()
        super().initialize(*args, **kwargs)


class RLVRWorker(_Balancing, actor_worker.ActorWorker):  # type: ignore[misc]
    """The worker of `actor_train` and `reference` in ROLL's pipeline for RLVR."""


class RLVRPGWorker(_Balancing, actor_pg_worker.ActorPGWorker):  # type: ignore[misc]
    """The worker of `actor_train` with `pg_variant` in ROLL's pipeline for RLVR."""

    _has_variants = True


class AgenticWorker(_Balancing, agentic_actor_worker.ActorWorker):  # type: ignore[misc]
    """The worker of `actor_train` in ROLL's agentic pipeline."""


class AgenticPGWorker(_Balancing, agentic_actor_pg_worker.ActorWorker):  # type: ignore[misc]
    """The worker of `actor_train` with `pg_variant` in ROLL's agentic pipeline."""

    _has_variants = True


class ReferenceWorker(_Balancing, base_worker.ActorWorker):  # type: ignore[misc]
    """The worker of `reference` in ROLL's agentic pipeline."""


class InferWorker(base_worker.InferWorker):  # type: ignore[misc]
    """The worker of `actor_infer` in both pipelines."""

    async def generate_request(self, payload: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Generate as ROLL does, and report the responses."""
        response = await super().generate_request(payload, *args, **kwargs)
        report_responses(payload, response)
        return response
