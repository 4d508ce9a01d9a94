"""`relibra placement`: where SGLang should place experts and their copies.

In:   a routing trace file, the model's `config.json`, the ranks of the engine.
Out:  a file for SGLang's `--init-expert-location`; what it gains on this routing.
"""

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from relibra.atomic_file import write_atomically
from relibra.cli.output import AsJson, open_console, print_json, working, writing
from relibra.errors import InvalidInput
from relibra.evaluation import load_of, schedule_of
from relibra.planning import Cluster
from relibra.routing import read_model_config, read_trace


def placement(
    trace: Annotated[
        Path, typer.Argument(help="Routing trace (.npz), as `relibra record` writes it.", show_default=False)
    ],
    model_config: Annotated[
        Path, typer.Option(help="The model's config.json, or a checkpoint folder that has one.", show_default=False)
    ],
    ep_size: Annotated[int, typer.Option(min=1, help="SGLang's --ep-size.", show_default=False)],
    redundant_experts: Annotated[int, typer.Option(min=0, help="SGLang's --ep-num-redundant-experts.")] = 0,
    nodes: Annotated[int, typer.Option(min=1, help="SGLang's --nnodes.")] = 1,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write (.json).")] = Path("placement.json"),
    as_json: AsJson = False,
) -> None:
    """Say where SGLang should place experts and their copies, for routing like that of a trace."""
    if ep_size % nodes:
        raise InvalidInput.of("--ep-size", expected=f"a multiple of {nodes} nodes", got=ep_size)
    if output.suffix != ".json":
        raise InvalidInput.of("--output", expected="a name that ends in .json, by which SGLang reads it", got=output)
    from relibra.evaluation.engine_placement import imbalance_of, place_copies, trivial  # loads numba

    with working(on=f"reading {trace}") as now:
        routing, layers = read_trace(trace), read_model_config(model_config)
        expected, got = (layers.num_moe_layers, layers.num_experts), (routing.num_layers, routing.num_experts)
        if expected != got:
            raise InvalidInput.of(str(trace), expected=f"(MoE layers, experts) = {expected} of the model", got=got)
        cluster = Cluster(num_nodes=nodes, gpus_per_node=ep_size // nodes, redundant_slots=0)
        load_MLE = load_of(routing, schedule_of(routing, cluster), cluster).load_MLE
        now("placing experts")
        num_copies = layers.num_experts + redundant_experts
        expert_LP = place_copies(load_MLE, num_copies, cluster)
        before, after = (
            imbalance_of(load_MLE, each, ep_size)
            for each in (trivial(routing.num_layers, layers.num_experts, num_copies), expert_LP)
        )
        # SGLang counts all transformer layers, and its own default fills those without experts.
        expert_XP = trivial(layers.num_layers, layers.num_experts, num_copies)
        expert_XP[np.array(layers.is_moe)] = expert_LP
        with writing("--output"):
            write_atomically(output, json.dumps({"physical_to_logical_map": expert_XP.tolist()}).encode())
    if as_json:
        print_json({"output": str(output), "imbalance_trivial": before, "imbalance": after})
        return
    open_console().print(
        f"Imbalance of {ep_size} ranks on this routing: {before:.3f} as SGLang places experts by itself, {after:.3f} "
        f"with this placement.\nWritten to {output}: start SGLang with --init-expert-location {output} --ep-size "
        f"{ep_size} --ep-num-redundant-experts {redundant_experts}",
        highlight=False,
    )
