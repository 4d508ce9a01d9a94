"""Put an agent into a built model."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from relibra.agent.agent import Agent
from relibra.agent.config import AgentConfig
from relibra.agent.experts import Experts
from relibra.agent.groups import Groups
from relibra.agent.plan_source import PlanSource
from relibra.agent.session import Session


def attach(
    model_chunks: nn.Module | Sequence[nn.Module],
    optimizer: Any,
    config: AgentConfig,
    *,
    plans: PlanSource | None = None,
) -> Agent:
    """Collective over all ranks: hook an agent into a built model, and return it.

    Args:
        model_chunks: a built module, also DDP-wrapped, or a list of them, under the identity placement.
        optimizer: its megatron (or torch) optimizer; None where weights alone move.
        config: equal on all ranks.
        plans: where plans come from; the planner named in `config` by default.

    Raises:
        InvalidInput: `config` does not describe this model.
        Unsupported: the model or optimizer is configured in a way the agent cannot execute.
    """
    from relibra.agent import megatron

    chunks = [model_chunks] if isinstance(model_chunks, nn.Module) else list(model_chunks)
    models = [megatron.unwrap(chunk) for chunk in chunks]
    layers = megatron.find_layers(chunks, config.model, config.cluster)
    state = megatron.optimizer_state(optimizer)
    groups = Groups.create(layers[0].ep_group, layers[0].experts.dp_group.rank(), config)
    agent = Agent(
        config=config,
        models=models,
        experts=[Experts(layer.experts) for layer in layers],
        optimizer_state=state,
        groups=groups,
        plans=plans or Session(config, groups.ep_rank),
    )
    agent.hook(
        [
            megatron.install(layer, execution, config.cluster)
            for layer, execution in zip(layers, agent.layers, strict=True)
        ]
    )
    return agent
