import pytest

from relibra.agent import AgentConfig
from relibra.errors import InvalidInput
from relibra.planning import Cluster, Model

CLUSTER = Cluster(num_nodes=1, gpus_per_node=3, redundant_slots=1)


@pytest.mark.parametrize(
    ("num_experts", "plan_timeout_s", "field"), [(4, 1.0, "model.num_experts"), (6, 0.0, "plan_timeout_s")]
)
def test_a_config_that_cannot_work_is_refused_by_name(num_experts: int, plan_timeout_s: float, field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        AgentConfig(
            planner_address="127.0.0.1:1",
            job_id="job",
            model=Model(num_layers=1, num_experts=num_experts, top_k=1),
            cluster=CLUSTER,
            plan_timeout_s=plan_timeout_s,
        )


def test_L1_a_step_may_not_wait_longer_for_its_plan_than_ranks_wait_for_each_other() -> None:
    with pytest.raises(
        InvalidInput, match=r"collective_timeout_s: expected more than plan_timeout_s \(30 s\).* got 30 s"
    ):
        AgentConfig(
            planner_address="127.0.0.1:1",
            job_id="job",
            model=Model(num_layers=1, num_experts=3, top_k=1),
            cluster=CLUSTER,
            collective_timeout_s=30.0,
        )


@pytest.mark.parametrize(("collective_timeout_s", "is_warned"), [(31.0, True), (59.0, True), (60.0, False)])
def test_L1_ranks_that_come_late_and_wait_for_their_plan_need_time_too(
    collective_timeout_s: float, is_warned: bool
) -> None:
    config = AgentConfig(
        planner_address="127.0.0.1:1",
        job_id="job",
        model=Model(num_layers=1, num_experts=3, top_k=1),
        cluster=CLUSTER,
        collective_timeout_s=collective_timeout_s,
    )
    assert ("raise collective_timeout_s" in (config.advice or "")) == is_warned


@pytest.mark.parametrize(("transport", "hint"), [("pigeons", ""), ("peer", r" \(symmetric replaces peer\)")])
def test_an_unknown_transport_is_refused_by_name(transport: str, hint: str) -> None:
    known = "process_group or symmetric or symmetric_if_possible"
    with pytest.raises(InvalidInput, match=f"transport: expected {known}{hint}, got {transport}"):
        AgentConfig(
            planner_address="127.0.0.1:1",
            job_id="job",
            model=Model(num_layers=1, num_experts=3, top_k=1),
            cluster=CLUSTER,
            transport=transport,  # type: ignore[arg-type]
        )
