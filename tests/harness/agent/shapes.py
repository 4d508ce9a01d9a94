"""Random models and clusters."""

from hypothesis import strategies as st

from relibra.planning import Cluster, Model


@st.composite
def shapes(draw: st.DrawFn) -> tuple[Model, Cluster]:
    cluster = Cluster(
        num_nodes=draw(st.integers(1, 3)),
        gpus_per_node=draw(st.integers(1, 3)),
        redundant_slots=draw(st.integers(0, 3)),
        num_ep_groups=draw(st.integers(1, 2)),
    )
    num_experts = cluster.num_ranks * draw(st.integers(1, 3))
    return Model(num_layers=draw(st.integers(1, 3)), num_experts=num_experts, top_k=1), cluster
