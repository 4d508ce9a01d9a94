"""Replicas in the autograd graph: weights arrive before the experts run, gradients return home after their backward.

Every cell with replicas has two autograd functions and a hook on the gradient of the outputs, at points that all ranks
of the node pass in the same order:

    point      forward runs where                backward
    accept     the transformer layer begins      the homes add up the gradients of replicas
    begin      the experts begin                 the ranks begin to send these gradients
    end        the experts end                   the ranks fetch the weights again (the hook)

Autograd passes the points in reverse order. So the backward of `accept` comes after the backward of dispatch and
attention, during which gradients travel. The home parameters are inputs of `accept`, so its backward comes before DDP
learns that their gradients are ready.

If DDP reduces gradients during the backward, it reduces a bucket as soon as all its gradients are ready. The ranks that
hold the same experts have other replicas, so with the home parameters alone they would begin the same reductions in
another order, and hang, or add up different buckets. Then all parameters of the layer are inputs of `accept`, on all
ranks, also where this node has no replicas of the cell (`Passage`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from relibra.agent.cells.fetch import Fetcher
from relibra.agent.cells.gradient_return import GradientReturn, GradientReturns
from relibra.agent.cells.pass_order import Moment, PassOrder, Use
from relibra.agent.cells.replicated_cell import ReplicatedCell
from relibra.agent.cells.slots import Slots
from relibra.agent.cells.span import span
from relibra.agent.cells.token_split import TokenSplit
from relibra.agent.transport.timed import TimedTransport
from relibra.kernels import DirectFunction, refuse_second_derivatives


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaContext:
    """The objects that all layers of a rank share: to exchange replicas in the node, and to split tokens over them."""

    transport: TimedTransport
    slots: Slots
    fetcher: Fetcher
    returns: GradientReturns
    split: TokenSplit
    order: PassOrder
    replayed: dict[int, Callable[[], Tensor | None]] = field(default_factory=dict)
    """By layer, a function that returns the experts `[T, K]` that a replay has set for its next forward, if any."""

    def drain(self) -> None:
        """Wait for all transfers under way, and forget what arrived, because weights are about to change."""
        self.fetcher.drain()
        self.returns.release()


@dataclass(slots=True)
class _Home:
    """The end of the gradients' way, which `accept` keeps. It holds no visit, because the graph of one leads here."""

    cell: ReplicatedCell
    arriving: list[GradientReturn] = field(default_factory=list)
    """The gradients of the replicas, while they are under way."""

    def accept(self) -> Tensor:
        """Return the output of `accept`, which a later function of the cell must take as an input."""
        accepted: Tensor = _Accept.apply(self, self.cell.anchor, *self.cell.accepting)
        return accepted

    def add_up(self) -> list[Tensor | None]:
        """Add up the gradients that arrived; return those of the accepting parameters that autograd must add."""
        if not self.cell.copies:
            return [None] * len(self.cell.accepting)
        with span("returned", self.cell.use.layer):
            return self.arriving.pop().add_up(self.cell.accepting)


class Visit:
    """One run of a layer over one cell with replicas. All ranks of the node make one; the autograd graph keeps it.

    Args:
        context: shared by the layers of this rank.
        cell: the cell.
        use: the use of its replicas.
        moment: the kind of pass.
    """

    def __init__(self, context: ReplicaContext, cell: ReplicatedCell, use: Use, moment: Moment) -> None:
        self.use, self.is_recorded = use, torch.is_grad_enabled()
        self._context, self._cell, self._moment = context, cell, moment
        self._home = _Home(cell)
        if self.is_recorded:
            self._anchor = self._home.accept()
        context.fetcher.prefetch(use, cell.following(use, moment))

    def begin(self, tokens: Tensor, probs: Tensor) -> tuple[Tensor, Tensor, list[list[Tensor]]]:
        """Return tokens and probabilities unchanged, and the weights of this rank's replicas by redundant slot."""
        weights: list[Any]
        if self.is_recorded:
            tokens, probs, *weights = _Begin.apply(self, self._anchor, tokens, probs)
        else:
            weights = [*self.fetch()]
        if into := self._gradients():
            for weight, gradient in zip(weights, into, strict=True):
                weight.main_grad = gradient
        size = self._cell.num_tensors
        return tokens, probs, [weights[i : i + size] for i in range(0, len(weights), size)]

    def end(self, outputs: Tensor, replicas: Sequence[Sequence[Tensor]]) -> Tensor:
        """Return the outputs of the experts unchanged, after they have run.

        The graph keeps `replicas` alive, because kernels may hold only weak references to weights.
        """
        self._context.fetcher.leave(self.use, self._cell.following(self.use, self._moment))
        if not self.is_recorded:
            return outputs
        # What else has hooked into the outputs finds the weights in their slots.
        ended = outputs if outputs._backward_hooks is None else outputs.view_as(outputs)

        def fetch_again(_: Tensor, replicas: object = replicas) -> None:
            self.fetch_again()

        ended.register_hook(fetch_again)  # type: ignore[no-untyped-call]
        return ended

    def fetch(self) -> list[Tensor]:
        """Return the weights of this rank's replicas, slot by slot."""
        cell, use, slots = self._cell, self.use, self._context.slots
        self._context.fetcher.take(use, cell.following(use, self._moment))
        return [weight for slot in range(cell.num_own) for weight in slots.weights(use.side, slot, use.layer)]

    def fetch_again(self) -> None:
        """Fill the slots with the weights of the forward, and zero the gradients that kernels add to."""
        cell, use = self._cell, self._cell.use_in_backward
        self._context.fetcher.take(use, cell.following(use, Moment.BACKWARD))
        if into := self._gradients():
            self._context.returns.settle()  # what they hold may still be on its way home
        for gradient in into:
            gradient.zero_()

    def send_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """Begin to send the gradients of this rank's replicas home.

        Args:
            gradients: from autograd, slot by slot; None for a tensor that has none.
        """
        cell, into = self._cell, self._gradients()
        size, one = cell.num_tensors, cell.experts.parameters[0]
        own = [
            [
                _take_gradient(one[tensor], gradients[begin + tensor], into[begin + tensor] if into else None)
                for tensor in cell.trained
            ]
            for begin in range(0, cell.num_own * size, size)
        ]
        with span("return", self.use.layer):
            under_way = self._context.returns.start(cell, own)
        self._home.arriving.append(under_way)
        use = cell.use_in_backward
        self._context.fetcher.leave(use, cell.following(use, Moment.BACKWARD))

    def _gradients(self) -> list[Tensor]:
        """Return the memory of this rank's replicas' gradients, tensor by tensor; empty if kernels do not add to it."""
        use, slots = self.use, self._context.slots
        own = range(self._cell.num_own)
        return [gradient for slot in own for gradient in slots.gradients(use.side, slot, use.layer)]


class Passage:
    """One run of a layer over a cell of which this node has no replicas, and another node has some.

    Its gradients become ready in the same order as on the ranks with replicas.

    Args:
        cell: the cell.
        use: the use of its replicas.
    """

    def __init__(self, cell: ReplicatedCell, use: Use) -> None:
        self.use, self.is_recorded = use, True
        self._anchor = _Home(cell).accept()

    def begin(self, tokens: Tensor) -> Tensor:
        """Return the tokens unchanged."""
        passed: Tensor = _Pass.apply(self._anchor, tokens)
        return passed


def _take_gradient(like: Tensor, gradient: Tensor | None, into: Tensor | None) -> Tensor:
    """Return the gradient of one tensor of a replica: autograd's, plus what a kernel added to `main_grad`."""
    if into is None:
        return torch.zeros_like(like) if gradient is None else gradient
    return into if gradient is None else into.add_(gradient)


class _Accept(DirectFunction):
    @staticmethod
    def forward(ctx: Any, home: _Home, anchor: Tensor, *parameters: nn.Parameter) -> Tensor:
        ctx.home = home
        ctx.set_materialize_grads(False)
        return anchor

    @staticmethod
    def backward(ctx: Any, _: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        return None, None, *ctx.home.add_up()


class _Pass(DirectFunction):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tokens: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return tokens

    @staticmethod
    def backward(ctx: Any, tokens: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, tokens


class _Begin(DirectFunction):
    @staticmethod
    def forward(ctx: Any, visit: Visit, anchor: Tensor, tokens: Tensor, probs: Tensor) -> tuple[Tensor, ...]:
        ctx.visit = visit
        ctx.set_materialize_grads(False)
        weights = visit.fetch()
        if frozen := visit._cell.frozen:
            ctx.mark_non_differentiable(*(weights[i] for i in frozen))
        return tokens, probs, *weights

    @staticmethod
    def backward(
        ctx: Any, tokens: Tensor | None, probs: Tensor | None, *weights: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        ctx.visit.send_gradients(weights)
        return None, None, tokens, probs
