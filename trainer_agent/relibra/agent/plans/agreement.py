"""All ranks execute a step under one plan, or under none (S1), and know together whether something succeeded."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
import torch.distributed as dist

from relibra.agent.transport.lost_ranks import noticing_death
from relibra.planning import PlanId

log = logging.getLogger(__name__)


class Lack(IntEnum):
    """Why a rank has nothing to offer."""

    NOTHING = 0
    """It lacks nothing: it holds a plan."""
    LATE = 1
    STALE = 2
    INVALID = 3


_LACKS = {
    Lack.LATE: "without a plan in time",
    Lack.STALE: "offered an older epoch than was applied before",
    Lack.INVALID: "offered an invalid plan",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What one rank brings to the agreement about one step."""

    step: int
    plan_id: PlanId | None
    digest: bytes = b""
    """Of the plan; the same id with another content is another plan."""
    lack: Lack = Lack.NOTHING

    def to_tensor(self, device: torch.device) -> torch.Tensor:
        """Encode as int64 `[6]`; 64-bit identities keep their bits."""
        plan_id = self.plan_id or PlanId(epoch=0, version=0)
        fields = (
            self.step,
            int(self.plan_id is not None),
            _signed(plan_id.epoch),
            _signed(plan_id.version),
            int.from_bytes(self.digest[:8].ljust(8, b"\0"), "little", signed=True),
            int(self.lack),
        )
        return torch.tensor(fields, dtype=torch.int64, device=device)

    @classmethod
    def from_tensor(cls, encoded: torch.Tensor) -> "Offer":
        """Decode what `to_tensor` made; of the digest its first 8 bytes remain."""
        step, has_plan, epoch, version, digest, lack = encoded.tolist()
        return cls(
            step=step,
            plan_id=PlanId(epoch=epoch % 2**64, version=version % 2**64) if has_plan else None,
            digest=int(digest).to_bytes(8, "little", signed=True),
            lack=Lack(lack),
        )


def decide(offers: Sequence[Offer]) -> tuple[PlanId | None, str]:
    """Return the plan all ranks execute, or None for the previous placement without replicas, and why.

    A pure function of what all ranks know after `exchange`, hence the same decision on all of them.
    """
    steps = sorted({offer.step for offer in offers})
    if len(steps) > 1:
        return None, f"ranks are at different steps: {', '.join(map(str, steps))}"
    lacks: list[str] = []
    for lack, text in _LACKS.items():
        ranks = [rank for rank, offer in enumerate(offers) if offer.plan_id is None and offer.lack == lack]
        if ranks:
            lacks.append(f"{_ranks(ranks)} {text}")
    if lacks:
        return None, "; ".join(lacks)
    held: dict[tuple[PlanId | None, bytes], list[int]] = {}
    for rank, offer in enumerate(offers):
        held.setdefault((offer.plan_id, offer.digest[:8]), []).append(rank)
    if len(held) > 1:
        parts = [f"{_ranks(ranks)} plan {plan_id} ({digest.hex()})" for (plan_id, digest), ranks in held.items()]
        return None, f"ranks hold different plans: {'; '.join(parts)}"
    plan_id = offers[0].plan_id
    return plan_id, f"all {len(offers)} ranks hold plan {plan_id}"


def exchange(offer: Offer, group: dist.ProcessGroup, device: torch.device) -> list[Offer]:
    """Collective: return the offers of all ranks of `group`, by rank.

    Raises:
        RelibraError: a rank is gone.
    """
    return [Offer.from_tensor(each) for each in _gathered(offer.to_tensor(device), "agreeing on a plan", group)]


def together(action: Callable[[], None], what: str, group: dist.ProcessGroup, device: torch.device) -> str | None:
    """Collective: run `action` on every rank; return None where it succeeded on all, else who failed and why.

    What an action raises stays on its rank, so that every rank gets here; the text names the error of this rank only.

    Raises:
        RelibraError: a rank is gone.
    """
    own = ""
    try:
        action()
    except Exception as error:
        log.exception("%s failed", what)
        own = f" (this rank: {type(error).__name__}: {error})"
    mine = torch.tensor([bool(own)], dtype=torch.int64, device=device)
    failed = [rank for rank, verdict in enumerate(_gathered(mine, f"{what}{own}", group)) if verdict.item()]
    return f"{what} failed on {_ranks(failed)}{own}" if failed else None


def least(mine: int, what: str, group: dist.ProcessGroup, device: torch.device) -> int:
    """Collective: return the smallest of all ranks' numbers.

    Raises:
        RelibraError: a rank is gone.
    """
    return min(int(each.item()) for each in _gathered(torch.tensor([mine], device=device), what, group))


def _gathered(mine: torch.Tensor, what: str, group: dist.ProcessGroup) -> list[torch.Tensor]:
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    with noticing_death(what):
        dist.all_gather(gathered, mine, group=group)
        return [each.cpu() for each in gathered]


def _ranks(ranks: list[int]) -> str:
    names = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
