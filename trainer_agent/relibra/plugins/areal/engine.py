"""AReaL's Megatron engines with an agent inside: every pass is planned, from the passes before or from its samples."""

import os
from functools import partial
from typing import Any

from areal.engine import megatron_engine

from relibra.agent import Phase
from relibra.errors import Unsupported
from relibra.plugins.areal import points
from relibra.plugins.areal.batch import rank_batch
from relibra.plugins.areal.recovery import StateByExpert
from relibra.plugins.attached_job import attach_job
from relibra.plugins.balanced_passes import BalancedPasses, within
from relibra.plugins.logical_export import Renamed
from relibra.plugins.points import check_points
from relibra.plugins.settings import Mode, PluginSettings
from relibra.routing.model_config import layers_of_config

check_points(megatron_engine, points.ENGINE, version=points.VERSION, without=points.OFF)


# AReaL reads names and does not use them; sharded state is under logical names.
@within("ignoring_names", "save")
# The bridges and AReaL's own code write files in one call, and hand out no stream whose names could be changed.
@within("at_original_places", "_save_model_to_hf")
@within("loading_by_place", "_load_model_from_hf")
class BalancedPPOActor(megatron_engine.MegatronPPOActor):  # type: ignore[misc]
    """AReaL's engine; its own methods run unchanged, between the calls that drive the agent.

    Each call of `forward_backward_batch` is a step at the planner.
    """

    beside = ""
    """What the model is, if it is not the actor."""
    is_reported = False
    """Whether the rollout reports the routing of its responses."""
    passes = BalancedPasses()
    """The passes of this engine, with an agent once the model is built."""
    _renamed: Renamed
    """Gives experts their own names, while an update of weights is under way."""

    def initialize(self, *args: Any, **kwargs: Any) -> None:
        """Build the model as AReaL does, and attach an agent to it.

        Raises:
            InvalidInput: a setting is missing or wrong.
            Unsupported: the agent cannot execute the model, the optimizer or a setting of AReaL.
        """
        super().initialize(*args, **kwargs)
        settings = PluginSettings.read({}, os.environ, default_job="areal", may_pack=False)
        layers = layers_of_config(self.hf_config.get_text_config().to_dict())
        is_balanced = settings.mode is Mode.BALANCE
        if is_balanced and self.config.use_lora:
            raise Unsupported("expected actor.use_lora=false, because each rank of AReaL trains other adapters")
        if is_balanced and self.enable_tree_training:
            raise Unsupported("expected enable_tree_training=false, because relibra does not plan for trees")
        self.passes = attach_job(
            settings, layers, list(self.model), self.optimizer, beside=self.beside, moves=not self.beside
        )
        if self.passes.mover is not None:
            self._state = self.checkpointer.optimizer = StateByExpert(self.optimizer)

    def connect_engine(self, engine: Any, meta: Any, *args: Any, **kwargs: Any) -> None:
        """Connect to a rollout engine as AReaL does.

        Raises:
            Unsupported: AReaL would send weights through awex.
        """
        if self.passes.agent is not None and meta.type == "awex":
            raise Unsupported(points.NO_AWEX)
        super().connect_engine(engine, meta, *args, **kwargs)

    def forward_backward_batch(
        self, mb_list: Any, process_output_fn: Any, forward_only: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        """Run a pass as AReaL does, under a plan."""
        if self.passes.agent is None:
            super().forward_backward_batch(mb_list, process_output_fn, forward_only, *args, **kwargs)
            return
        batch = partial(rank_batch, mb_list.mbs) if self.is_reported else None
        self.passes.begin(Phase.RECOMPUTE if forward_only else Phase.UPDATE, batch)
        with self.passes.in_schedules_of(megatron_engine):
            super().forward_backward_batch(mb_list, process_output_fn, forward_only, *args, **kwargs)
        if self.optimizer is None:
            self.passes.end()

    def optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
        """Step as AReaL does, and end the agent's step."""
        stats = super().optimizer_step(*args, **kwargs)
        self.passes.end()
        return stats

    def load(self, *args: Any, **kwargs: Any) -> None:
        """Load as AReaL does."""
        if self.passes.mover is None:
            super().load(*args, **kwargs)
            return
        with self.passes.ignoring_names(), self._state.loading():
            super().load(*args, **kwargs)

    def _update_weights_from_distributed(self, *args: Any, **kwargs: Any) -> None:
        with self.passes.exporting() as self._renamed:
            super()._update_weights_from_distributed(*args, **kwargs)

    def _update_bucket_weights_from_distributed(
        self, meta: Any, converted_named_tensors: list[Any], *args: Any, **kwargs: Any
    ) -> None:
        """Send a bucket as AReaL does, with its names, after each expert got its own."""
        # In place, because AReaL empties the list to free the tensors.
        converted_named_tensors[:] = self._renamed(list(converted_named_tensors), is_whole=False)
        super()._update_bucket_weights_from_distributed(meta, converted_named_tensors, *args, **kwargs)


class ReportedPPOActor(BalancedPPOActor):
    """The engine of an actor whose rollout reports its responses, which passes are planned from."""

    is_reported = True


class BalancedReference(BalancedPPOActor):
    """The engine of the reference, a job of its own. No expert of it moves, and its steps end with their passes."""

    beside = "reference"
