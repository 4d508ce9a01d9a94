"""Passes of a plug-in under plans that a test made, in place of those of a planner.

They move experts on one machine, too, where a job has the homes of its experts stay.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

from harness.distributed.plans import ScriptedPlans
from relibra.agent import attach
from relibra.planning import StepPlan
from relibra.plugins import attached_job
from relibra.plugins.planned_passes import PlannedPasses


@contextmanager
def scripted_passes(plans: dict[int, StepPlan | None]) -> Iterator[ScriptedPlans]:
    """Have engines that are built in the body take these plans of this rank, by the number of the pass."""
    source = ScriptedPlans(plans)
    with (
        mock.patch.object(attached_job, "attach", partial(attach, plans=source)),
        mock.patch.object(attached_job, "homes_stay", return_value=False),
        mock.patch.object(PlannedPasses, "submit", return_value=True),
    ):
        yield source
