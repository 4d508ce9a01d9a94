"""The weights of a job, as its loop reads, copies and writes them: by logical name, or by place in a known order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from relibra.agent.cells.given_routing import ADVICE as ROUTING_ADVICE
from relibra.agent.config import AgentConfig
from relibra.agent.experts import Experts
from relibra.agent.groups import Groups
from relibra.agent.homes.by_place import PlaceNames
from relibra.agent.homes.checkpoint import logical_named_parameters
from relibra.agent.homes.guard import ADVICE as WEIGHTS_ADVICE
from relibra.agent.homes.guard import WeightGuard
from relibra.agent.homes.homes import Homes
from relibra.agent.homes.named_weights import check_named, write_named
from relibra.agent.homes.snapshot import Snapshot, follow
from relibra.agent.plans.agreement import together
from relibra.agent.plans.consent import Concern, found_by, raise_on_all
from relibra.errors import InvalidInput, RelibraError, Unsupported
from relibra.planning.places import Placement

WEIGHTS = Concern(what="checking weights", error=RelibraError, advice=WEIGHTS_ADVICE)
NAMED_WEIGHTS = Concern(
    what="checking weights under logical names",
    error=InvalidInput,
    advice="the weights lack a name of that rank, have another shape or cannot be read; no rank has written any",
)
ROUTING = Concern(what="checking the use of the routing given", error=Unsupported, advice=ROUTING_ADVICE)


class WeightAccess:
    """The part of an agent through which weights leave the modules and return.

    Args:
        config: settings of the agent.
        models: the model chunks without wrappers.
        experts: the experts of this rank, by layer.
        unplanned: the experts of this rank in MoE layers without plans, which never move.
        homes: where the experts live.
        guard: notices weights that were written behind the agent's back.
        places: knows whether names by place are right.
        groups: process groups of this rank.
        forget_replicas: drops weights that were fetched from other ranks, or copied to be fetched.
    """

    def __init__(
        self,
        *,
        config: AgentConfig,
        models: Sequence[nn.Module],
        experts: Mapping[int, Experts],
        unplanned: Sequence[Experts],
        homes: Homes,
        guard: WeightGuard,
        places: PlaceNames,
        groups: Groups,
        forget_replicas: Callable[[], None],
    ) -> None:
        self._forget_replicas = forget_replicas
        self._config, self._groups = config, groups
        self._models, self._experts, self._homes, self._unplanned = models, experts, homes, unplanned
        self._guard, self._places = guard, places

    @property
    def home_rank_LE(self) -> NDArray[np.int32]:
        """A copy of the current placement: the home rank of every expert of the whole model, int32 `[L, E]`."""
        return self._homes.placement.home_rank_LE.copy()

    @property
    def expert_of_place_LE(self) -> NDArray[np.int32]:
        """The logical expert at every place of the whole model, int32 `[L, E]`. Only `begin_step` changes it.

        A place is megatron's number of an expert: EP rank x experts per rank + position among the rank's experts. Code
        that names experts by place, as converters do, must look up each expert here.
        """
        return self._homes.placement.expert_of_place_LE

    def logical_named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the names and parameters of this rank, experts under their global logical ids.

        Merged over the ranks of an EP group, they are the state of the same model on one rank, whatever the placement.
        With expert tensor parallelism, a rank yields its part of each expert, and all parts of a parameter have one
        name, as in megatron itself: join the parts of the ranks of an ETP group before you merge names.
        With several model chunks, names begin with `model<chunk>.`.
        """
        _ = self._homes.placement  # raises after an interrupted reorder
        self._guard.check_known()
        return logical_named_parameters(self._models, self._logical())

    @property
    def original_order(self) -> Snapshot:
        """The order of copies that were made before `attach` or before the first reorder."""
        return Snapshot(placement=Placement.identity(self._config.model, self._config.cluster))

    @contextmanager
    def copying(self) -> Iterator[Snapshot]:
        """Copy weights by name in the body, to the host or elsewhere, and keep the yielded snapshot with the copy.

        Raises:
            RelibraError: the modules hold weights that were written behind the agent's back, or a step began in the
                body and moved experts.
        """
        snapshot = Snapshot(placement=self._homes.placement)
        self._places.forget_sharded_names()
        self._guard.check_known()
        with self._places.allow():
            yield snapshot
        if self._homes.placement.moves_to(snapshot.placement):
            raise RelibraError(
                "experts moved while weights were copied, so some of the copy has the new order and some the old one; "
                "read all of it again, before the next begin_step"
            )

    @contextmanager
    def restoring(self, snapshot: Snapshot) -> Iterator[None]:
        """Collective over all ranks: write weights back by name in the body. The end brings every expert to its place.

        Any reorders may have happened since `copying`. Experts travel between ranks, without optimizer state. All names
        must be written, on all ranks. The weights may serve forwards and exports. Training goes on only after the
        trained weights are back, bit by bit.

        Args:
            snapshot: that of the copy.

        Raises:
            RelibraError: the experts could not be moved, or a rank is gone; or the body raised on another rank, and no
                expert was moved.
        """
        self._homes.check_at_home()
        self._places.forget_sharded_names()
        self._forget_replicas()
        try:
            with self._places.allow():
                yield
        except Exception as error:
            self._homes.bring_here(snapshot.placement, error)
            raise
        self._homes.bring_here(snapshot.placement)
        self._guard.note_visiting()

    @contextmanager
    def ignoring_names(self) -> Iterator[None]:
        """Walk over `named_parameters()` in the body without giving the names a meaning, as offloads and logs do.

        The weights are neither compared nor moved, and `state_dict()` and `load_state_dict()` stay refused. What is
        offloaded by such names must be back before the next `begin_step`. As a decorator, it does this around every
        call: `offload = agent.ignoring_names()(offload)`.
        """
        with self._places.ignore():
            yield

    def check_weights(self) -> None:
        """Collective over all ranks: check that the modules hold the trained weights or restored ones.

        Without this call before `dist_checkpointing.save`, a rank with other weights raises alone inside the save, and
        the others wait for it in the collectives of the save.

        Raises:
            RelibraError: on all ranks, if the modules of one hold weights that were written behind the agent's back.
        """
        self._check_weights(self._guard.check_known, "before they leave")

    @contextmanager
    def at_original_places(self) -> Iterator[None]:
        """Collective over all ranks: have every expert at its original place in the body, to be read by place there.

        Exports and copies that name experts by place are right inside, without a change in them. Weights travel there
        and back, without optimizer state; if they are there already, nothing happens. As a decorator, it does this
        around every call: `updater.update_weights = agent.at_original_places()(updater.update_weights)`.

        Raises:
            RelibraError: the modules hold weights that were written behind the agent's back, the experts could not be
                moved, or a rank is gone. Inside, forwards, steps and writing are refused.
        """
        if self._places.are_original:
            yield
            return
        self._check_weights(self._guard.check_known, "before experts go to their original places")
        self._forget_replicas()
        with self._guard.set_aside(), self._homes.lend(self.original_order.placement):
            yield

    def follow(self, backuper: Any) -> None:
        """Make a framework's backups by tag right, whatever reorders happen. Call it once, before `begin_step`.

        All copies have the original order, so that they can also be exported by place: `backup` runs inside
        `at_original_places`, and `restore` inside `restoring`.

        Args:
            backuper: an object as slime's `TensorBackuper`. `backup` and `restore` become collective over all ranks.

        Raises:
            Unsupported: there are backups already, and there was a reorder, so nobody knows their order.
        """
        if self._homes.has_moved and backuper.backup_tags:
            raise Unsupported(
                f"the order of the backups {', '.join(backuper.backup_tags)} is not known, because there was a reorder "
                "since attach; call agent.follow(backuper) before the first begin_step"
            )
        follow(
            backuper,
            at_original_places=self.at_original_places,
            restoring=self.restoring,
            original=self.original_order,
        )

    def accept_weights(self) -> None:
        """Declare that the weights in the modules are right, in the present order, and the ones to train on."""
        self._homes.check_at_home()
        self._guard.note_trained()

    def forget_copies(self) -> None:
        """Have replicas fetch the weights that are in the modules now. `restoring` and `begin_step` do so themselves.

        Call it on all ranks if a phase RECOMPUTE goes on after a loop without reorders has written other weights into
        the modules.
        """
        self._forget_replicas()

    def load_logical(self, weights: Mapping[str, Tensor]) -> None:
        """Collective over all ranks: write weights under logical names, and accept them as the trained ones.

        Args:
            weights: named as by `logical_named_parameters`; at least those of this rank. Others, such as experts of
                other ranks, are left out. An optimizer with fp32 main copies must reload them afterwards:
                `optimizer.reload_model_params()`. The mapping may read tensors when it is asked for them.

        Raises:
            InvalidInput: on all ranks, if a name of one is missing or a shape differs. Nothing was written anywhere.
            RelibraError: on all ranks, if one could not read the weights, with nothing written; or if one could not
                write them, when some ranks may have. Once a plan was applied, steps refuse such a mixture.
        """
        self._homes.check_at_home()
        self._groups.rebuild_if_destroyed()
        own = dict[str, Tensor]()

        def check() -> None:
            self._forget_replicas()
            own.update(logical_named_parameters(self._models, self._logical()))
            check_named(own, weights)

        everyone = self._groups.everyone
        raise_on_all({NAMED_WEIGHTS: found_by(check)}, "before they are loaded", everyone)
        failure = together(lambda: write_named(own, weights), "writing weights under logical names", everyone)
        if failure is not None:
            raise RelibraError(f"{failure}. Some weights are new and others old: load all of them again before any use")
        self._guard.note_trained()

    def _logical(self) -> Iterator[tuple[Experts, Sequence[int]]]:
        """Yield the experts of every MoE layer, with the logical expert in every home slot."""
        for layer, experts in self._experts.items():
            yield experts, self._homes.logical_experts(layer)
        for experts in self._unplanned:
            first = self._groups.seat.ep_rank * experts.num_home_slots
            yield experts, range(first, first + experts.num_home_slots)

    def _check_weights(self, check: Callable[[], None], when: str, refusal: Unsupported | None = None) -> None:
        """Collective over all ranks: raise on all ranks if one finds other weights, or refuses routing."""
        self._groups.rebuild_if_destroyed()
        raise_on_all({WEIGHTS: found_by(check), ROUTING: refusal}, when, self._groups.everyone)
