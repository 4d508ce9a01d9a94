import pytest

from relibra.plugins.nemo_rl.__main__ import default_job


@pytest.mark.parametrize(
    ("arguments", "job"),
    [
        (["examples/run_grpo.py"], "run_grpo"),
        (["run_grpo.py", "--config", "recipes/grpo-moonlight.v2.yaml"], "grpo-moonlight.v2"),
        (["run_grpo.py", "--config=a.yaml", "grpo.num_prompts_per_step=4"], "a"),
        (["run_grpo.py", "--config", "a.yaml", "++logger.wandb.name=my run"], "my-run"),
    ],
)
def test_a_job_that_nobody_names_has_the_name_of_its_run_or_recipe(arguments: list[str], job: str) -> None:
    assert default_job(arguments) == job
