"""The phases of a step, and what they keep while they are open."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from relibra.agent.phases import Phases
from relibra.agent.plans.foretold import ForetoldPhases
from relibra.agent.plans.outcome import StepOutcome
from relibra.agent.plans.stopwatch import clock_of
from relibra.planning import Model, Phase

MODEL = Model(num_layers=2, num_experts=4, top_k=1)


def test_the_routing_of_a_phase_is_dropped_when_the_next_phase_begins() -> None:
    cells: Any = SimpleNamespace(num_micro_batches=1)
    phases = Phases(
        model=MODEL,
        groups=mock.Mock(),
        plans=mock.Mock(),
        transport=mock.Mock(sent_bytes=0, waited_s=0.0),
        cells=lambda: cells,
        clock=clock_of(torch.device("cpu")),
        foretold=ForetoldPhases(),
        replay_obstacle=lambda: None,
        device=torch.device("cpu"),
    )
    outcome = StepOutcome(step=0, applied=None, reason="")
    phases.begin(Phase.RECOMPUTE, outcome)
    first = phases.open
    assert first is not None
    phases.set_routing(0, torch.tensor([[[3]], [[1]]]))
    assert phases.has_routing()
    phases.begin(Phase.UPDATE, outcome)
    assert first.given_experts == {}
    assert not phases.has_routing()
