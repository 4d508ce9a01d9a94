"""The order of experts in a copy of the weights."""

from dataclasses import dataclass

from relibra.agent.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The order of the experts in weights that were copied by name. Keep one for every copy; it holds no weights."""

    placement: Placement
