"""The guard against weights that were written behind the agent's back, by place and in the order of another placement.

Reference, teacher and older weights pass through the same modules as the trained ones, and frameworks copy them by
name. After a reorder a name stands for another expert, so a copy that is put back by name puts experts where the router
does not expect them. The guard keeps a checksum of every parameter of every expert on this rank, and compares it before
the weights are used or leave. Checksums are computed on the device; only a comparison waits for the device.

Forwards that belong to no plan begin without such a comparison. A forward without gradients compares if torch counted a
write. torch counts no writes through `.data`, so once experts have moved, each of these forwards compares a sample.

Before the first plan is applied, every copy has the one order that there is, and no rank holds replicas of other
weights. Until then the guard compares nothing.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from relibra.agent.experts import Experts
from relibra.agent.homes.optimizer_state import OptimizerState
from relibra.errors import RelibraError

Checksums = Mapping[int, Tensor]
"""layer -> the checksums of the parameters of the expert in every home slot, int64 `[S, P]`."""
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SAMPLE_SIZE = 128
"""The elements of a parameter in a sample. Different experts differ in nearly every element."""

ADVICE = (
    "experts may be where the router does not expect them. Copy weights out inside `with agent.copying() as snapshot:` "
    "and put them back inside `with agent.restoring(snapshot):`. Copies from before the first reorder have the "
    "snapshot `agent.original_order`. If the weights are right and in the present order, call `agent.accept_weights()`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Noted:
    """Weights that are known."""

    checksums: Checksums
    sample_of: Mapping[int, Tensor]
    """By layer, some elements of every parameter; empty before the first reorder."""


class WeightGuard:
    """Knows the weights that belong into the modules of this rank: the trained ones, or restored ones that visit.

    Only the steps of the optimizer change the trained weights. If the agent has the optimizer, it checks the weights
    before each step and notes them after it. If it does not, it expects any weights from phase UPDATE to the end of the
    step.

    A distributed optimizer may gather parameters late, in the next forward. So a checksum covers the part of an expert
    that the optimizer of this rank updates itself; together, the ranks cover all of it.

    Args:
        experts: the experts of this rank, by layer.
        state: the optimizer state of this rank.
        device: where the weights are while the job trains.
        has_moved: returns whether any expert of the job has ever moved. Equal on all ranks.
    """

    def __init__(
        self,
        experts: Mapping[int, Experts],
        state: OptimizerState,
        device: torch.device,
        has_moved: Callable[[], bool],
    ) -> None:
        self._experts, self._state, self._device, self._has_moved = experts, state, device, has_moved
        self.is_armed = False
        """Whether a plan was ever applied. Equal on all ranks."""
        self.sees_optimizer = False
        """Whether the guard is told before and after every step of the optimizer."""
        self._trained: _Noted | None = None
        self._visiting: _Noted | None = None
        self._versions: dict[int, int] = {}

    def note_trained(self) -> None:
        """Remember the present weights as the trained ones, without waiting for the device."""
        self._trained, self._visiting = self._get_note(), None

    def note_begun(self, *, has_moved: bool) -> None:
        """Remember the weights of a step that begins, after `check_trained`, which has read them if none has moved."""
        if has_moved or self._trained is None:
            self.note_trained()
        self._visiting = None

    def note_visiting(self) -> None:
        """Remember the present weights as restored ones, beside the trained ones, without waiting for the device."""
        self._visiting = self._get_note()

    def forget(self) -> None:
        """Expect any weights, because an optimizer or the loading of a checkpoint changes them."""
        self._trained = self._visiting = None

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Compare nothing in the body, which sees the same weights in another order."""
        trained, visiting = self._trained, self._visiting
        self.forget()
        try:
            yield
        finally:
            self._trained, self._visiting = trained, visiting

    def check_memory(self) -> None:
        """Check that the weights are not offloaded.

        Raises:
            RelibraError: they have no memory, or they are on another device.
        """
        check_memory(self._experts, self._device)

    def check_trained(self) -> None:
        """Check that the trained weights are in the modules, before a step begins or training continues.

        Raises:
            RelibraError: other weights are there.
        """
        if self._trained is not None:
            self._check(self._get_checksums(), [self._trained])

    def check_known(self) -> None:
        """Check that trained or restored weights are in the modules, before they are exported or copied.

        Raises:
            RelibraError: other weights are there.
        """
        if self._trained is not None:
            self._check(self._get_checksums(), self._known)

    def check_layer(self, layer: int) -> None:
        """Check the weights of one layer before they enter a checkpoint.

        Raises:
            RelibraError: neither trained nor restored weights are there.
        """
        if self._trained is not None:
            version = self._version_of(layer)
            self._check({layer: self._taken_of(layer)}, self._known)
            self._versions[layer] = version

    def check_forward(self, layer: int, is_planned: bool) -> None:
        """Check the weights of one layer before a forward without gradients, as far as something may have written them.

        Args:
            layer: the layer.
            is_planned: whether the forward belongs to a phase of a step, which has begun with a check.

        Raises:
            RelibraError: neither trained nor restored weights are there.
        """
        if self._trained is None:
            return
        is_written = self._version_of(layer) != self._versions[layer]
        if is_written or (not is_planned and self._trained.sample_of and self._has_other_sample(layer)):
            self.check_layer(layer)

    @property
    def _known(self) -> list[_Noted]:
        return [noted for noted in (self._trained, self._visiting) if noted is not None]

    def _get_note(self) -> _Noted | None:
        checksums = self._get_checksums()
        if checksums is None:
            return None
        layers = self._experts if self._has_moved() else ()
        return _Noted(checksums=checksums, sample_of={layer: self._sample_of(layer) for layer in layers})

    def _get_checksums(self) -> Checksums | None:
        if not self.is_armed:
            return None
        self._versions = {layer: self._version_of(layer) for layer in self._experts}
        return {layer: self._taken_of(layer) for layer in self._experts}

    @torch.no_grad()
    def _taken_of(self, layer: int) -> Tensor:
        check_memory({layer: self._experts[layer]}, self._device)
        of_slots = self._experts[layer].parameters
        sums = [
            _sum_of_words(parameter, *self._range_of(parameter)) for parameters in of_slots for parameter in parameters
        ]
        return torch.stack(sums).view(len(of_slots), -1)

    def _has_other_sample(self, layer: int) -> bool:
        sample = self._sample_of(layer)
        return not any(torch.equal(sample, noted.sample_of[layer]) for noted in self._known)

    @torch.no_grad()
    def _sample_of(self, layer: int) -> Tensor:
        """Return bit patterns of some elements of every parameter: one launch, which reads little."""
        check_memory({layer: self._experts[layer]}, self._device)
        of_slots = self._experts[layer].parameters
        return torch.cat(
            [_few_words(parameter, *self._range_of(parameter)) for parameters in of_slots for parameter in parameters]
        )

    def _range_of(self, parameter: nn.Parameter) -> tuple[int, int]:
        """Return the range that only this rank checks, or all of a frozen parameter, which no optimizer owns."""
        return self._state.range_of(parameter) if parameter.requires_grad else (0, parameter.numel())

    def _version_of(self, layer: int) -> int:
        return sum(parameter._version for parameters in self._experts[layer].parameters for parameter in parameters)

    def _check(self, present: Checksums | None, known: list[_Noted]) -> None:
        if not present:
            return
        # One tensor and one wait for the device, for all layers.
        differs_KLS = torch.stack(
            [
                torch.stack([(present[layer] != noted.checksums[layer]).any(dim=-1) for layer in present])
                for noted in known
            ]
        ).cpu()
        for layer, differs_KS in zip(present, differs_KLS.unbind(dim=1), strict=True):
            if differs_KS.any(dim=1).all():
                slots = torch.nonzero(differs_KS[0]).flatten().tolist()
                raise RelibraError(
                    f"the weights of MoE layer {layer} at positions {slots} of this rank were written behind the "
                    f"agent's back; {ADVICE}"
                )


def check_memory(experts: Mapping[int, Experts], device: torch.device) -> None:
    """Check that weights are not offloaded.

    Args:
        experts: by layer.
        device: where the weights are while the job trains.

    Raises:
        RelibraError: they have no memory, or they are on another device.
    """
    for layer, of_layer in experts.items():
        for parameters in of_layer.parameters:
            for parameter in parameters:
                where = ""
                if not parameter.numel() or parameter.untyped_storage().nbytes() < parameter.nbytes:
                    where = "have no memory"
                elif parameter.device != device:
                    where = f"are on {parameter.device} and not on {device}"
                if where:
                    raise RelibraError(
                        f"the weights of MoE layer {layer} {where}: bring them back from their offload before "
                        "begin_step, end_step, detach, an export or a restore, and before an export ends"
                    )


def _sum_of_words(parameter: Tensor, start: int, stop: int) -> Tensor:
    """Return the sum of the bit patterns of some elements, int64: one launch, which reads every byte once.

    It adds the widest words that fill the range, because torch adds int64 about 15 times as fast as narrower words on
    CPUs. It does not see words that change places within the parameter, nor an even number of changes to the highest
    bits of words; no copy by name makes such changes alone.
    """
    elements = parameter.detach().view(-1)[start:stop]
    width = math.gcd(8, elements.nbytes)
    if elements.storage_offset() * elements.element_size() % width:
        elements = elements.clone()  # the sum of equal weights is the same wherever they are
    return elements.view(_WORDS[width]).sum(dtype=torch.int64)


def _few_words(parameter: Tensor, start: int, stop: int) -> Tensor:
    """Return the bit patterns of at most `_SAMPLE_SIZE` of some elements, evenly spaced."""
    stride = max(1, -(-(stop - start) // _SAMPLE_SIZE))
    return parameter.detach().view(-1)[start:stop:stride].view(_WORDS[parameter.element_size()])
