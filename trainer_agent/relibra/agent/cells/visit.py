"""Replicas in the autograd graph: weights arrive before the experts run, gradients return home after their backward.

Every cell with replicas has three autograd functions, at points that all ranks of the node pass in the same order:

    function   forward runs where                backward
    accept     the transformer layer begins      the homes add up the gradients of replicas
    begin      the experts begin                 the ranks begin to send these gradients
    end        the experts end                   the ranks fetch the weights again

Autograd runs the functions in reverse order. So the backward of `accept` comes after the backward of dispatch and
attention, during which gradients travel. The home parameters are inputs of `accept`, so its backward comes before DDP
learns that their gradients are ready.

If DDP reduces gradients during the backward, it reduces a bucket as soon as all its gradients are ready. The ranks that
hold the same experts have other replicas, so with the home parameters alone they would begin the same reductions in
another order, and hang, or add up different buckets. Then all parameters of the layer are inputs of `accept`, on all
ranks, also where this node has no replicas of the cell (`Passage`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from relibra.agent.cells.arrivals import Arrivals
from relibra.agent.cells.fetch import Fetcher, Moment, Use, next_use
from relibra.agent.cells.gradient_return import GradientReturn, returning, trained
from relibra.agent.cells.slots import NUM_SIDES, Slots
from relibra.agent.cells.span import span
from relibra.agent.experts import Experts
from relibra.agent.transport.timed import TimedTransport


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaContext:
    """The objects that all layers of a rank share to exchange replicas with the other ranks of the node."""

    transport: TimedTransport
    slots: Slots
    fetcher: Fetcher
    arrivals: Arrivals | None = None
    """Where gradients arrive, if the transport needs places."""


@dataclass(slots=True, kw_only=True)
class _Home:
    """The parameters of a layer that are inputs of `accept`, and the returns under way to them."""

    layer: int
    parameters: Sequence[nn.Parameter]
    has_replicas: bool
    """Whether the cell has replicas in this node, whose gradients return before `accept`."""
    arriving: list[GradientReturn] = field(default_factory=list)

    def accept(self, experts: Experts) -> Tensor:
        """Return the output of `accept`, which a later function of the cell must take as an input."""
        # All ranks of the node need the same graph, even a rank with nothing to return or accept.
        anchor = experts.parameters[0][0].new_empty(0).requires_grad_()
        accepted: Tensor = _Accept.apply(self, anchor, *self.parameters)  # type: ignore[no-untyped-call]
        return accepted


class Visit:
    """One run of a layer over one cell with replicas. All ranks of the node make one; the autograd graph keeps it.

    Args:
        context: shared by the layers of this rank.
        use: the cell and pass.
        moment: the kind of pass.
        layers: the layers of the model chunk that have replicas in this micro-batch, ascending.
        experts: the experts of the layer.
        reduces_early: whether DDP reduces gradients during the backward, and other ranks hold the same experts.
    """

    def __init__(
        self,
        context: ReplicaContext,
        use: Use,
        moment: Moment,
        layers: Sequence[int],
        experts: Experts,
        *,
        reduces_early: bool,
    ) -> None:
        self.use, self.is_recorded = use, torch.is_grad_enabled()
        self._context, self._moment, self._layers, self._experts = context, moment, layers, experts
        self._side = layers.index(use.layer) % NUM_SIDES
        rank = context.transport.rank
        self._num_own = sum(copy.destination_rank == rank for copy in use.copies)
        parameters = _all_trained(experts) if reduces_early else returning(rank, use.copies, experts.parameters)
        self._home = _Home(layer=use.layer, parameters=parameters, has_replicas=True)
        self._anchor = self._home.accept(experts)
        context.fetcher.prefetch(use, self._side)

    def begin(self, tokens: Tensor, probs: Tensor) -> tuple[Tensor, Tensor, list[list[Tensor]]]:
        """Return tokens and probabilities unchanged, and the weights of this rank's replicas by redundant slot."""
        tokens, probs, *weights = _Begin.apply(self, self._anchor, tokens, probs)  # type: ignore[no-untyped-call]
        size = len(self._experts.parameters[0])
        for weight, gradient in zip(weights, self._gradients(), strict=True):
            if gradient is not None:
                weight.main_grad = gradient
        return tokens, probs, [weights[i : i + size] for i in range(0, len(weights), size)]

    def end(self, outputs: Tensor, replicas: Sequence[Sequence[Tensor]]) -> Tensor:
        """Return the outputs of the experts unchanged.

        The graph keeps `replicas` alive, because kernels may hold only weak references to weights.
        """
        ended: Tensor = _End.apply(self, replicas, outputs)  # type: ignore[no-untyped-call]
        return ended

    def fetch(self) -> list[Tensor]:
        """Return the weights of this rank's replicas, slot by slot."""
        self._take(self.use, self._moment)
        own = range(self._num_own)
        return [each for slot in own for each in self._context.slots.weights(self._side, slot, self.use.layer)]

    def fetch_again(self) -> None:
        """Fill the slots with the weights of the forward, and zero the gradients that kernels add to."""
        self._take(self.use._replace(in_backward=True), Moment.BACKWARD)
        for gradient in self._gradients():
            if gradient is not None:
                gradient.zero_()

    def send_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """Begin to send the gradients of this rank's replicas home.

        Args:
            gradients: from autograd, slot by slot; None for a tensor that has none.
        """
        one = self._experts.parameters[0]
        of_tensors = zip([*one] * self._num_own, gradients, self._gradients(), strict=True)
        produced = [_produced(like, gradient, into) for like, gradient, into in of_tensors if like.requires_grad]
        size = len(trained(one))
        with span("return", self.use.layer):
            under_way = GradientReturn(
                self._context.transport,
                self.use.copies,
                own=[produced[slot * size : (slot + 1) * size] for slot in range(self._num_own)],
                home=self._experts.parameters,
                dtype=self._context.slots.gradient_dtype,
                memory=self._context.arrivals,
            )
        self._context.fetcher.hold(self._side, under_way)
        self._home.arriving.append(under_way)

    def _take(self, use: Use, moment: Moment) -> None:
        self._context.fetcher.take(use, self._side, next_use(use, moment, self._layers))

    def _gradients(self) -> list[Tensor | None]:
        own = range(self._num_own)
        return [each for slot in own for each in self._context.slots.gradients(self._side, slot, self.use.layer)]


class Passage:
    """One run of a layer over a cell of which this node has no replicas, and another node has some.

    Its gradients become ready in the same order as on the ranks with replicas.

    Args:
        use: the cell and pass.
        experts: the experts of the layer.
    """

    def __init__(self, use: Use, experts: Experts) -> None:
        self.use, self.is_recorded = use, torch.is_grad_enabled()
        self._anchor = _Home(layer=use.layer, parameters=_all_trained(experts), has_replicas=False).accept(experts)

    def begin(self, tokens: Tensor) -> Tensor:
        """Return the tokens unchanged."""
        passed: Tensor = _Pass.apply(self._anchor, tokens)  # type: ignore[no-untyped-call]
        return passed


def _all_trained(experts: Experts) -> list[nn.Parameter]:
    return [parameter for of_slot in experts.parameters for parameter in trained(of_slot)]


def _produced(like: Tensor, gradient: Tensor | None, into: Tensor | None) -> Tensor:
    """Return the gradient of one tensor of a replica: autograd's, plus what a kernel added to `main_grad`."""
    if into is None:
        return torch.zeros_like(like) if gradient is None else gradient
    return into if gradient is None else into.add_(gradient)


class _Accept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, home: _Home, anchor: Tensor, *parameters: nn.Parameter) -> Tensor:
        ctx.home = home
        ctx.set_materialize_grads(False)
        return anchor.view_as(anchor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor | None) -> tuple[Tensor | None, ...]:
        home: _Home = ctx.home
        if not home.has_replicas:
            return None, None, *(None for _ in home.parameters)
        with span("returned", home.layer):
            gradients = home.arriving.pop().add_up(home.parameters)
        return None, None, *gradients


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tokens: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return tokens.view_as(tokens)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, tokens: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, tokens


class _Begin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, visit: Visit, anchor: Tensor, tokens: Tensor, probs: Tensor) -> tuple[Tensor, ...]:
        ctx.visit = visit
        ctx.set_materialize_grads(False)
        weights = visit.fetch()
        one = visit._experts.parameters[0]
        ctx.mark_non_differentiable(*(w for i, w in enumerate(weights) if not one[i % len(one)].requires_grad))
        return tokens.view_as(tokens), probs.view_as(probs), *weights

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, tokens: Tensor | None, probs: Tensor | None, *weights: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        ctx.visit.send_gradients(weights)
        return None, None, tokens, probs


class _End(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, visit: Visit, replicas: Sequence[Sequence[Tensor]], outputs: Tensor) -> Tensor:
        ctx.visit, ctx.replicas = visit, replicas
        return outputs.view_as(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outputs: Tensor) -> tuple[Tensor | None, ...]:
        ctx.visit.fetch_again()
        return None, None, outputs
