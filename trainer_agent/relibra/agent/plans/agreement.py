"""The agreement of all ranks on one plan for a step, or on none (S1), and on whether an action succeeded.

Ranks agree over gloo, with tensors in host memory: the host needs the answers, and over NCCL it would wait for the
GPU, and NCCL's watchdog would end the process instead of raising an error.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from relibra.agent.transport.lost_ranks import noticing_death
from relibra.errors import RelibraError
from relibra.planning import Cause, Phase, PlanId

log = logging.getLogger(__name__)

Told = TypeVar("Told")

_LACKS = {
    Cause.LATE: "without a plan in time",
    Cause.STALE: "offered an older epoch than was applied before",
    Cause.INVALID: "offered an invalid plan",
    Cause.OTHER_LAUNCH: "in no attempt of the job, because another launch trains it",
    Cause.UNSCHEDULED: "without a plan, as nobody scheduled the step, and there is no newer one from earlier steps",
    Cause.MEASURING: "without a plan, to measure a plain step",
    Cause.NOT_FASTER: "without a plan, because planned steps were not faster",
}
"""Why a rank offers no plan."""
_LACK_BY_CODE = (None, *_LACKS)


class Spent(NamedTuple):
    """What a step took: on one rank, or on several together."""

    time_s: float = 0.0
    """The time from its first forward to its last forward or step of the optimizer, and the waits before it; the
    longest of several ranks."""
    num_token_copies: int = 0

    @classmethod
    def total(cls, parts: "Sequence[Spent]") -> "Spent":
        """Return what several ranks spent together."""
        return cls(max(part.time_s for part in parts), sum(part.num_token_copies for part in parts))


NOTHING = Spent()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The plan of one rank for one step, as it enters the agreement."""

    step: int
    plan_id: PlanId | None
    digest: bytes = b""
    """The digest of the plan. Two plans with one id and different digests are different plans."""
    lack: Cause | None = None
    """Why this rank has no plan to offer, a key of `_LACKS`. None where it has one."""
    is_scheduled: bool = True
    """Whether somebody scheduled the step. If not, the plan is the newest from history when this rank asked."""
    spent: Spent = NOTHING
    """What the step before took on this rank; nothing if it was not measured."""
    foretold: frozenset[Phase] = frozenset()
    """The phases of which this rank's replay told almost all that routers chose, in the last step with replicas."""
    untold: frozenset[Phase] = frozenset()
    """The phases of which it did not."""

    def to_tensor(self) -> torch.Tensor:
        """Encode as int64 `[11]`; 64-bit identities keep their bits, and times their nanoseconds."""
        plan_id = self.plan_id or PlanId(epoch=0, version=0)
        fields = (
            self.step,
            int(self.plan_id is not None),
            _as_signed(plan_id.epoch),
            _as_signed(plan_id.version),
            int.from_bytes(self.digest[:8].ljust(8, b"\0"), "little", signed=True),
            _LACK_BY_CODE.index(self.lack),
            int(self.is_scheduled),
            round(self.spent.time_s * 1e9),
            self.spent.num_token_copies,
            *(
                sum(1 << bit for bit, phase in enumerate(Phase) if phase in offer)
                for offer in (self.foretold, self.untold)
            ),
        )
        return torch.tensor(fields, dtype=torch.int64, device="cpu")

    @classmethod
    def from_tensor(cls, encoded: torch.Tensor) -> "Offer":
        """Decode what `to_tensor` made, with the first 8 bytes of the digest."""
        *fields, foretold, untold = encoded.tolist()
        step, has_plan, epoch, version, digest, lack, is_scheduled, time_ns, num_token_copies = fields
        return cls(
            step=step,
            plan_id=PlanId(epoch=epoch % 2**64, version=version % 2**64) if has_plan else None,
            digest=int(digest).to_bytes(8, "little", signed=True),
            lack=_LACK_BY_CODE[lack],
            is_scheduled=bool(is_scheduled),
            spent=Spent(time_ns / 1e9, num_token_copies),
            foretold=_phases(foretold),
            untold=_phases(untold),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The plan that all ranks execute in a step."""

    plan_id: PlanId | None
    """None: all ranks keep the last plan."""
    causes: tuple[Cause, ...]
    """Why there is no plan: all causes, in the order of `Cause`. Empty where there is one."""
    reason: str
    """Why, for people."""


def decide(offers: Sequence[Offer]) -> Decision:
    """Return what all ranks execute, and why.

    The result depends only on what all ranks know after `exchange`, so it is the same on all of them.
    """
    reasons: dict[Cause, str] = {}
    for cause, text in _LACKS.items():
        ranks = [rank for rank, offer in enumerate(offers) if offer.lack is cause]
        if ranks:
            reasons[cause] = f"{names_of(ranks)} {text}"
    if disagreement := _disagreement(offers):
        # Where nobody scheduled the step, a plan was published while ranks asked: it is that of the next step.
        is_news = len({offer.step for offer in offers}) == 1 and not any(offer.is_scheduled for offer in offers)
        reasons[Cause.UNSCHEDULED if is_news else Cause.DISAGREED] = disagreement
    if reasons:
        causes = tuple(cause for cause in Cause if cause in reasons)
        return Decision(plan_id=None, causes=causes, reason="; ".join(reasons.values()))
    plan_id = offers[0].plan_id
    return Decision(plan_id=plan_id, causes=(), reason=f"all {len(offers)} ranks hold plan {plan_id}")


def _disagreement(offers: Sequence[Offer]) -> str | None:
    steps = sorted({offer.step for offer in offers})
    if len(steps) > 1:
        return f"ranks are at different steps: {', '.join(map(str, steps))}"
    held: dict[tuple[PlanId, bytes], list[int]] = {}
    for rank, offer in enumerate(offers):
        if offer.plan_id is not None:
            held.setdefault((offer.plan_id, offer.digest[:8]), []).append(rank)
    if len(held) < 2:
        return None
    parts = [f"{names_of(ranks)} plan {plan_id} ({digest.hex()})" for (plan_id, digest), ranks in held.items()]
    return f"ranks hold different plans: {'; '.join(parts)}"


def exchange(offer: Offer, group: dist.ProcessGroup) -> list[Offer]:
    """Collective: return the offers of all ranks of `group`, by rank.

    Raises:
        RelibraError: a rank did not take part in time.
    """
    return [Offer.from_tensor(of_rank) for of_rank in gather_tensors(offer.to_tensor(), "agreeing on a plan", group)]


class Consequence(RelibraError):
    """An error that may follow from the failure of another rank."""


def together(action: Callable[[], None], what: str, group: dist.ProcessGroup) -> str | None:
    """Collective: run `action` on every rank. Return None if it succeeded on all ranks, else who failed and why.

    An exception of `action` is caught, so that every rank reaches the collective. The returned text names the failed
    ranks and, of the errors, that of this rank. Ranks with a `Consequence` count only if no rank failed with another
    error.

    Raises:
        RelibraError: a rank did not take part in time.
    """
    own, gravity = "", 0
    try:
        action()
    except Exception as error:
        log.exception("%s failed", what)
        own, gravity = f" (this rank: {type(error).__name__}: {error})", 1 if isinstance(error, Consequence) else 2
    gravities = gather_numbers(gravity, f"{what}{own}", group)
    worst = max(gravities)
    failed = [rank for rank, of_rank in enumerate(gravities) if of_rank == worst]
    return f"{what} failed on {names_of(failed)}{own if gravity == worst else ''}" if worst else None


def gather_numbers(mine: int, what: str, group: dist.ProcessGroup) -> list[int]:
    """Collective: return the numbers of all ranks, by rank.

    Raises:
        RelibraError: a rank did not take part in time.
    """
    return [int(of_rank) for of_rank in gather_tensors(torch.tensor(mine, device="cpu"), what, group)]


def gather_tensors(mine: torch.Tensor, what: str, group: dist.ProcessGroup) -> list[torch.Tensor]:
    """Collective: return the tensors of all ranks of `group`, by rank.

    The first rank collects the tensors and sends them to all. Gloo's own all-gather passes them on from rank to rank,
    in as many hops as there are ranks.

    Args:
        mine: a tensor in host memory; of one shape on all ranks.
        what: the name of the agreement in log and error.
        group: over gloo.

    Raises:
        RelibraError: a rank did not take part in time.
    """
    first, all_RX = dist.get_global_rank(group, 0), mine.new_empty(dist.get_world_size(group), *mine.shape)
    with noticing_death(what):
        dist.gather(mine, list(all_RX.unbind()) if dist.get_rank(group) == 0 else None, dst=first, group=group)
        dist.broadcast(all_RX, src=first, group=group)
    return list(all_RX.unbind())


def tell(mine: Told, what: str, ranks: Sequence[int], group: dist.ProcessGroup) -> list[Told]:
    """Collective over `ranks`, a few ranks of `group`: return what each of them tells, in their order.

    Args:
        mine: what this rank tells; anything that can be pickled.
        what: the name of the exchange in log and error.
        ranks: global ranks, in one order on all of them.
        group: over gloo.

    Raises:
        RelibraError: a rank did not take part in time.
    """
    first, *others = ranks
    all_told = [mine] * len(ranks)
    with noticing_death(what):
        if dist.get_rank() == first:
            for i, rank in enumerate(others, 1):
                heard: list[Any] = [None]
                dist.recv_object_list(heard, src=rank, group=group)
                all_told[i] = heard[0]
            for rank in others:
                dist.send_object_list(all_told, dst=rank, group=group)
        else:
            dist.send_object_list([mine], dst=first, group=group)
            dist.recv_object_list(all_told, src=first, group=group)
    return all_told


def names_of(ranks: list[int]) -> str:
    """Return how a message names these ranks."""
    names = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"


@cache
def _phases(bits: int) -> frozenset[Phase]:
    return frozenset(phase for bit, phase in enumerate(Phase) if bits >> bit & 1)


def _as_signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
