"""The JSON schemas of the GPU-hours that balancing saves."""

from pydantic import Field

from relibra.status.models import Shown
from relibra.status.savings import Saving, TokenTime, assumption
from relibra.store import JobRecord


class SavingsView(Shown):
    """What balancing saved over all steps of a job that are kept, expired or not, in all of its attempts."""

    saved_gpu_hours: float | None = Field(
        description="Below 0 where balancing cost more than it saved; null while no step counts.", examples=[12.4]
    )
    assumption: str = Field(description="What the figure rests on, or why it is unknown.")
    training_gpu_hours: float = Field(description="Duration of the counted phases on all processes.", examples=[812.0])
    waited_gpu_hours: float = Field(
        description="Waits for plans, reorders and replicas, which are subtracted.", examples=[3.1]
    )
    expert_share: float | None = Field(
        description="The assumed share of experts in the counted phases; null while no step counts.", examples=[0.37]
    )
    us_per_token_copy: float | None = Field(
        description="Assumed time of one token copy in a forward pass of an expert; null if the job registered neither "
        "a cost model nor the size of its experts.",
        examples=[0.094],
    )
    is_measured: bool = Field(description="Whether this time is from a cost model that the job registered.")
    num_steps: int = Field(description="Steps that count.", examples=[120])
    num_forecast_steps: int = Field(description="Those of them that were planned from a forecast.", examples=[0])
    num_steps_left_out: int = Field(description="Steps with reports that do not count.", examples=[2])

    @classmethod
    def of(cls, saving: Saving, job: JobRecord) -> "SavingsView":
        """Return the view of a sum; the assumption is that of `job`, the current attempt."""
        time = TokenTime.of(job)
        return cls(
            saved_gpu_hours=saving.saved_gpu_hours,
            assumption=assumption(saving, time),
            training_gpu_hours=saving.trained_s / 3600,
            waited_gpu_hours=saving.waited_s / 3600,
            expert_share=saving.expert_s / saving.trained_s if saving.num_steps else None,
            us_per_token_copy=None if time is None else time.us,
            is_measured=time is not None and time.is_measured,
            num_steps=saving.num_steps,
            num_forecast_steps=saving.num_forecasts,
            num_steps_left_out=saving.num_left_out,
        )
