"""The weights of a job, as its loop reads, copies and writes them: by logical name, or by place in a known order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from relibra.agent.config import AgentConfig
from relibra.agent.experts import Experts
from relibra.agent.groups import Groups
from relibra.agent.homes.by_place import write_named
from relibra.agent.homes.checkpoint import logical_named_parameters
from relibra.agent.homes.guard import ADVICE, WeightGuard
from relibra.agent.homes.homes import Homes
from relibra.agent.homes.snapshot import Snapshot, follow
from relibra.agent.placement import Placement
from relibra.agent.plans.agreement import together
from relibra.errors import RelibraError, Unsupported


class WeightAccess:
    """The part of an agent through which weights leave the modules and return.

    Args:
        config: settings of the agent.
        models: the model chunks without wrappers.
        experts: the experts of this rank, by layer.
        homes: where the experts live.
        guard: notices weights that were written behind the agent's back.
        groups: process groups of this rank.
        device: where messages live.
        forget_replicas: drops weights that were fetched from other ranks, or copied to be fetched.
    """

    def __init__(
        self,
        *,
        config: AgentConfig,
        models: Sequence[nn.Module],
        experts: Mapping[int, Experts],
        homes: Homes,
        guard: WeightGuard,
        groups: Groups,
        device: torch.device,
        forget_replicas: Callable[[], None],
    ) -> None:
        self._forget_replicas = forget_replicas
        self._config, self._groups, self._device = config, groups, device
        self._models, self._experts, self._homes, self._guard = models, experts, homes, guard
        self._num_copies_under_way = 0
        self._named_at: Placement | None = None
        """The placement in which a sharded state dict last named the experts, until the next phase begins."""

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
        With several model chunks, names begin with `model<chunk>.`.
        """
        _ = self._homes.placement  # raises after an interrupted reorder
        self._guard.check_known()
        return logical_named_parameters(self._models, self._experts, self._homes.logical_experts)

    @property
    def original_order(self) -> Snapshot:
        """The order of copies that were made before `attach` or before the first reorder."""
        return Snapshot(placement=Placement.identity(self._config.model, self._config.cluster))

    @contextmanager
    def copying(self) -> Iterator[Snapshot]:
        """Copy weights by name in the body, to the host or elsewhere, and keep the yielded snapshot with the copy.

        Raises:
            RelibraError: the modules hold weights that were written behind the agent's back.
        """
        snapshot = Snapshot(placement=self._homes.placement)
        self._guard.check_known()
        with self._copies_allowed():
            yield snapshot

    @contextmanager
    def restoring(self, snapshot: Snapshot) -> Iterator[None]:
        """Collective over all ranks: write weights back by name in the body. The end brings every expert to its place.

        Any reorders may have happened since `copying`. Experts travel between ranks, without optimizer state. All names
        must be written, on all ranks. The weights may serve forwards and exports. Training goes on only after the
        trained weights are back, bit by bit.

        Args:
            snapshot: that of the copy.

        Raises:
            RelibraError: the experts could not be moved, or a rank is gone.
        """
        self._forget_replicas()
        with self._copies_allowed():
            yield
        self._groups.rebuild_if_destroyed()
        self._homes.bring_here(snapshot.placement)
        self._guard.note_visiting()

    def follow(self, backuper: Any) -> dict[str, Snapshot]:
        """Put `copying` and `restoring` around the methods of a framework's backups by tag. Call it once, early.

        Args:
            backuper: an object as slime's `TensorBackuper`. `restore` becomes collective over all ranks. `get` is
                refused while the copy has experts away from their original places, except inside `copying`.

        Returns:
            The order of the copy of every tag, kept up to date.

        Raises:
            Unsupported: there are backups already, and there was a reorder, so nobody knows their order.
        """
        if self._homes.has_moved and backuper.backup_tags:
            raise Unsupported(
                f"the order of the backups {', '.join(backuper.backup_tags)} is not known, because there was a reorder "
                "since attach; call agent.follow(backuper) before the first begin_step"
            )
        return follow(
            backuper,
            copying=self.copying,
            restoring=self.restoring,
            check_reading=self._check_reading,
            present=self.original_order,
        )

    def accept_weights(self) -> None:
        """Declare that the weights in the modules are right, in the present order, and the ones to train on."""
        self._guard.note_trained()

    def load_logical(self, weights: Mapping[str, Tensor]) -> None:
        """Write weights under logical names, as `logical_named_parameters` names them, and accept them as the trained.

        Args:
            weights: at least those of this rank. Others, such as experts of other ranks, are left out. An optimizer
                with fp32 main copies must reload them afterwards: `optimizer.reload_model_params()`.

        Raises:
            InvalidInput: a name is missing or a shape differs. Nothing was written on this rank.
        """
        self._forget_replicas()
        write_named(dict(logical_named_parameters(self._models, self._experts, self._homes.logical_experts)), weights)
        self._guard.note_trained()

    def check_reading_by_place(self, what: str) -> None:
        """Raise if a place does not stand for the expert of the same number. Only `attach` gives this to hooks.

        Raises:
            Unsupported: experts are away from their original places, outside `copying` and `restoring`.
        """
        self._check_reading(what, Snapshot(placement=self._homes.placement))

    def _check_reading(self, what: str, order: Snapshot) -> None:
        is_original = not order.placement.moves_to(self.original_order.placement)
        if not (self._num_copies_under_way or is_original):
            raise Unsupported(
                f"{what} names experts by place, and they are not at their original places; use "
                "agent.logical_named_parameters() or dist_checkpointing to export, `with agent.copying() as snapshot:` "
                "to copy weights and put them back, or detach before"
            )

    def check_writing_by_place(self, what: str) -> None:
        """Raise if nobody knows the order of state that is loaded. Only `attach` gives this to hooks.

        State that megatron has loaded under the names of a sharded state dict has the present order.

        Raises:
            Unsupported: there was a reorder since `attach`, and the order of the state is unknown.
        """
        placement = self._homes.placement
        if not self._homes.has_moved or self._num_copies_under_way:
            return
        if self._named_at is not placement:
            raise Unsupported(
                f"{what} names experts by place, and there was a reorder since attach; use `with "
                "agent.restoring(snapshot):` around it for weights that were copied, agent.load_logical(weights) for "
                "weights under logical names, or dist_checkpointing for a checkpoint"
            )
        self._guard.forget()

    def _logical_experts(self, layer: int) -> Sequence[int]:
        """Return the logical experts of a layer for its sharded state dict."""
        self._named_at = self._homes.placement
        self._guard.check_layer(layer)
        return self._homes.logical_experts(layer)

    @contextmanager
    def _copies_allowed(self) -> Iterator[None]:
        self._num_copies_under_way += 1
        try:
            yield
        finally:
            self._num_copies_under_way -= 1

    def _check_weights(self, check: Callable[[], None]) -> None:
        """Collective over all ranks, once a plan was applied: raise on all ranks if one finds other weights."""
        if self._guard.is_armed:
            failure = together(check, "checking weights", self._groups.everyone, self._device)
            if failure is not None:
                has_own = "this rank:" in failure
                raise RelibraError(failure if has_own else f"{failure}, whose logs say why. Usually, {ADVICE}")
