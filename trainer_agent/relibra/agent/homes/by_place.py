"""Names of experts by place, in state dicts and exports: refused where a place may stand for another expert."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any

from torch import Tensor, nn

from relibra.agent.homes.guard import WeightGuard
from relibra.agent.homes.homes import Homes
from relibra.agent.homes.replaced_method import replace_method
from relibra.errors import Unsupported
from relibra.planning.places import Placement

Check = Callable[[str], None]
"""Raises if what it is given, the name of a method, would read or write experts by place while they are elsewhere."""

_ANONYMOUS = ("torch.", "megatron.core.", "megatron.training.", "relibra.")
_NAMING = ("megatron.core.resharding.",)
"""Modules that call `named_parameters` without giving the names a meaning outside, and those of them that do."""


class PlaceNames:
    """Knows whether a name by place stands for the expert of the same number.

    Args:
        homes: where the experts live.
        guard: the guard of this rank's weights.
        original: the placement of the plain model.
    """

    def __init__(self, homes: Homes, guard: WeightGuard, original: Placement) -> None:
        self._homes, self._guard, self._original = homes, guard, original
        self._num_copies_under_way = self._num_ignored = 0
        self._named_at: Placement | None = None
        """The placement in which the optimizer last named its state to be loaded, until `forget_sharded_names`."""

    @property
    def are_original(self) -> bool:
        """Whether every expert is at its original place. Equal on all ranks."""
        return not self._homes.placement.moves_to(self._original)

    @contextmanager
    def allow(self) -> Iterator[None]:
        """Allow names by place in the body, because the caller knows their order."""
        self._num_copies_under_way += 1
        try:
            yield
        finally:
            self._num_copies_under_way -= 1

    @contextmanager
    def ignore(self) -> Iterator[None]:
        """Allow names in the body, because the caller gives them no meaning. State dicts by place stay refused."""
        self._num_ignored += 1
        try:
            yield
        finally:
            self._num_ignored -= 1

    def check_names(self, what: str) -> None:
        """Raise if a name does not stand for the expert of the same number, and may be given that meaning.

        Raises:
            Unsupported: experts are away from their original places, outside `allow` and `ignore`.
        """
        if not self._num_ignored:
            self.check_reading(
                what,
                "If the names do not leave the code that asks for them, as in an offload or a log, run that code "
                "inside `with agent.ignoring_names():`. ",
            )

    def check_reading(self, what: str, advice: str = "") -> None:
        """Raise if a place does not stand for the expert of the same number.

        Raises:
            Unsupported: experts are away from their original places, outside `allow`. Its text begins with `advice`.
        """
        if not self._num_copies_under_way and not self.are_original:
            raise Unsupported(
                f"{what} names experts by place, and they are not at their original places. {advice}Run an export "
                "that counts places inside `with agent.at_original_places():`; copy weights out inside `with "
                "agent.copying() as snapshot:`, where snapshot.expert_of_place_LE is the expert at a place, and back "
                "inside `with agent.restoring(snapshot):`; or export with agent.logical_named_parameters() or "
                "dist_checkpointing"
            )

    def check_local_checkpoint(self) -> None:
        """Raise if a local checkpoint could not be loaded after a restart, which puts experts at their original places.

        Raises:
            Unsupported: experts are away from their original places. Equally on all ranks.
        """
        if not self.are_original:
            raise Unsupported(
                "a local checkpoint holds the experts that each rank has now, and after a restart each rank asks for "
                "its original ones, so nobody could load it; save a global checkpoint "
                "(--non-persistent-ckpt-type global), or no local one after the first reorder"
            )

    def check_writing(self, what: str, orders: Sequence[str | None]) -> None:
        """Raise if nobody knows the order of weights that are loaded; otherwise accept them as the ones to train on.

        Before the first reorder there is only one order, unless the weights were named under an earlier attachment.

        Args:
            what: the method that loads.
            orders: the orders that the parts of the state bring along, `order` at the time when the part was named;
                None for a part by place.

        Raises:
            Unsupported: the order of a part is another one; or it is unknown, and there was a reorder since `attach`.
            RelibraError: the experts are lent to a reader.
        """
        self._homes.check_at_home()
        present = self.order()
        self._accept(
            what,
            is_present=all(order == present for order in orders),
            is_other=any(order not in (None, present) for order in orders),
        )

    def check_writing_state(self, what: str) -> None:
        """Raise if nobody knows the order of optimizer state that is loaded.

        After the first reorder, it is known of state that is loaded right after the optimizer has named it for a load.

        Raises:
            Unsupported: there was a reorder since `attach`, and the order of the state is unknown.
        """
        self._accept(what, is_present=self._named_at is self._homes.placement)

    def _accept(self, what: str, *, is_present: bool, is_other: bool = False) -> None:
        if self._num_copies_under_way:
            return
        if is_other:
            raise Unsupported(
                f"{what} got weights that were named before experts moved, or under an earlier attach, so the names "
                "stand for other experts now. Nothing was written. Ask for sharded_state_dict() of the model and of "
                "the optimizer (with is_loading=True) again, read the checkpoint under these names, and load the "
                "result before any other step"
            )
        if self._homes.has_moved and not is_present:
            raise Unsupported(
                f"{what} names experts by place, and there was a reorder since attach; use `with "
                "agent.restoring(snapshot):` around it for weights that were copied, agent.load_logical(weights) for "
                "weights under logical names, or dist_checkpointing for a checkpoint: load what it has read under the "
                "names of sharded_state_dict(), those of the optimizer with is_loading=True, before any other step"
            )
        self._guard.forget()

    def logical_experts(self, layer: int) -> Sequence[int]:
        """Return the logical experts of a layer for its sharded state dict."""
        self._guard.check_layer(layer)
        return self._homes.logical_experts(layer)

    def order(self) -> str:
        """Return a text for the present places of all experts of the job, equal on all ranks."""
        return self._homes.placement.fingerprint

    def expect_state(self) -> None:
        """Expect that the optimizer loads state which megatron reads under the present names."""
        self._named_at = self._homes.placement

    def forget_sharded_names(self) -> None:
        """Expect no state of the optimizer any more, because the job computes, copies weights or ends a step."""
        self._named_at = None


def check_named_parameters(modules: Iterable[nn.Module], check_names: Check) -> Callable[[], None]:
    """Check every call of `named_parameters` of these modules that hands the names to a framework. Return the undoing.

    Exports name experts by place through it. Megatron and torch call it too, and pass no name on.
    """
    undo = ExitStack()

    def named_parameters(self: nn.Module, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        caller = f"{sys._getframe(1).f_globals.get('__name__', '')}."
        if not caller.startswith(_ANONYMOUS) or caller.startswith(_NAMING):
            check_names(f"named_parameters() of {type(self).__name__}, called in {caller[:-1]},")
        return type(self).named_parameters(self, *args, **kwargs)

    for module in modules:
        # A method, so that a deep copy of the module yields the parameters of the copy.
        vars(module)["named_parameters"] = MethodType(named_parameters, module)
        undo.callback(vars(module).pop, "named_parameters", None)
    return undo.close


def check_optimizer_state_dicts(
    optimizer: Any,
    check_reading: Check,
    check_writing: Check,
    check_at_home: Callable[[], None],
    expect_state: Callable[[], None],
    expect_none: Callable[[], None],
) -> Callable[[], None]:
    """Check the `state_dict` and `load_state_dict` of an optimizer, unless its `sharded_state_dict` calls them.

    `check_at_home` raises if the state of the optimizer belongs to other weights than the ones in the modules. It is
    called in all three. `expect_state` is called when the optimizer names its state for a load, and `expect_none` when
    it names it for a save.
    """
    undo, depth = ExitStack(), 0
    plain_reading, plain_writing = optimizer.state_dict, optimizer.load_state_dict
    plain_sharded = getattr(optimizer, "sharded_state_dict", None)

    def is_for_load(_model_state: Any = None, is_loading: bool = False, *_: Any, **__: Any) -> bool:
        return is_loading

    def state_dict(*args: Any, **kwargs: Any) -> Any:
        check_at_home()
        if not depth:
            check_reading("optimizer.state_dict()")
        return plain_reading(*args, **kwargs)

    def load_state_dict(*args: Any, **kwargs: Any) -> Any:
        check_at_home()
        check_writing("optimizer.load_state_dict()")
        return plain_writing(*args, **kwargs)

    def sharded_state_dict(*args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        assert plain_sharded is not None
        check_at_home()
        (expect_state if is_for_load(*args, **kwargs) else expect_none)()
        depth += 1
        try:
            return plain_sharded(*args, **kwargs)
        finally:
            depth -= 1

    undo.callback(replace_method(optimizer, "state_dict", state_dict))
    undo.callback(replace_method(optimizer, "load_state_dict", load_state_dict))
    if plain_sharded is not None:
        undo.callback(replace_method(optimizer, "sharded_state_dict", sharded_state_dict))
    return undo.close
