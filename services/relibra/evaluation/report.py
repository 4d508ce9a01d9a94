"""Write a page that compares policies: one self-contained HTML file with its figure."""

import html
import json
from collections.abc import Sequence
from pathlib import Path

from relibra import charting
from relibra.atomic_file import write_atomically
from relibra.evaluation.question import Question
from relibra.evaluation.simulation import Outcome

_PARTS = {
    "attention_s": ("attention and dense layers", "#7a8794"),
    "experts_s": ("slowest rank's experts", "#2a7f62"),
    "dispatch_s": ("dispatch and combine", "#4060a0"),
    "transfer_s": ("replicas: weights and gradients", "#e0a030"),
    "decision_s": ("decisions, mapping of tokens", "#c05050"),
    "reorder_s": ("experts moving", "#8050a0"),
    "first_placement_s": ("share of the first placement", "#b890c8"),
}
_STYLE = """
:root { color-scheme: light dark }
body { background: Canvas; color: CanvasText; font: 15px/1.5 system-ui, sans-serif }
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #8884 }
th:first-child, td:first-child { text-align: left }
tr.best { font-weight: 600; background: #2a7f6230 }
"""
_CONFIG = {"displayModeBar": False, "responsive": True}
_CLEAR = "rgba(0, 0, 0, 0)"
_INK = "#808890"
"""This grey is readable on white and on black; a figure does not know which of them it stands on."""


def write_report(path: Path, question: Question, outcomes: Sequence[Outcome]) -> None:
    """Write the page for a question and its outcomes."""
    write_atomically(path, _page(question, outcomes).encode())


def _page(question: Question, outcomes: Sequence[Outcome]) -> str:
    cluster, trace = question.cluster, question.trace
    title = f"{question.model.name} on {cluster.num_nodes} x {cluster.gpus_per_node} {question.hardware.name.upper()}"
    source = (
        f"the {trace.num_sequences} recorded sequences"
        if question.is_of_this_model
        else "sequences drawn with the statistics of the recorded ones, which come from another model"
    )
    setting = (
        f"{question.num_micro_batches} micro-batches of {question.tokens_per_rank} tokens per GPU from {source}; "
        f"{cluster.redundant_slots} redundant slots per GPU for every policy that uses them, which take "
        f"{cluster.redundant_slots * question.model.slot_size_bytes / 1e9:.2f} GB together. Tokens travel by "
        f"{question.dispatcher.value}. Times are simulated for {question.hardware.source}; ranges in the table come "
        "from what is not known of such machines."
    )
    library = f"<script>{charting.library().decode()}</script>"
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><link rel="icon" href="data:,">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style><h1>{html.escape(title)}</h1><p>{html.escape(setting)}</p>"
        f"{library}{_figure(outcomes)}{_table(outcomes, cluster.num_ranks)}</html>"
    )


def _figure(outcomes: Sequence[Outcome]) -> str:
    """Return the parts of the step of each policy as a stacked bar."""
    policies = [outcome.policy for outcome in outcomes]
    bars = [
        {
            "type": "bar",
            "orientation": "h",
            "name": label,
            "x": [getattr(outcome.step, part) for outcome in outcomes],
            "y": policies,
            "marker": {"color": colour},
        }
        for part, (label, colour) in _PARTS.items()
        if any(getattr(outcome.step, part) for outcome in outcomes)
    ]
    layout = {
        "barmode": "stack",
        "showlegend": True,
        "legend": {"orientation": "h", "traceorder": "normal"},
        "xaxis": {"color": _INK, "gridcolor": "#8883", "zeroline": False},
        "yaxis": {"color": _INK, "autorange": "reversed", "automargin": True},
        "font": {"color": _INK, "family": "system-ui, sans-serif"},
        "paper_bgcolor": _CLEAR,
        "plot_bgcolor": _CLEAR,
        "height": 460,
        "margin": {"l": 10, "r": 20, "t": 10, "b": 40},
    }
    # A policy or label that ended the script element would end the page.
    drawn = ", ".join(json.dumps(argument).replace("<", "\\u003c") for argument in (bars, layout, _CONFIG))
    heading = '<h2>The parts of a step, in seconds</h2><div id="parts"></div>'
    return f'{heading}<script>Plotly.newPlot("parts", {drawn})</script>'


def _table(outcomes: Sequence[Outcome], num_ranks: int) -> str:
    best = max(outcomes, key=lambda outcome: outcome.of_balanced.mid)
    headings = (
        "policy",
        "step, s",
        "over plain",
        "of balanced",
        "imbalance",
        "replicas per cell",
        "experts moved",
        "sent, GB per GPU",
        "planning, s",
    )
    rows = [
        (
            outcome.policy,
            f"{outcome.step.total_s:.2f}",
            f"{outcome.over_plain:.2f}",
            f"{outcome.of_balanced:.1%}",
            f"{outcome.imbalance:.4f}",
            f"{outcome.replicas_per_cell:.1f}",
            str(outcome.num_moved_experts),
            f"{outcome.sent_bytes / num_ranks / 1e9:.1f}",
            f"{outcome.decide_time_s:.2f}",
        )
        for outcome in outcomes
    ]
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in headings)
    body = ""
    for row in rows:
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
        body += f"<tr class=best>{cells}</tr>" if row[0] == best.policy else f"<tr>{cells}</tr>"
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<h2>Figures</h2><div class=scroll tabindex=0 role=region aria-label="Figures">{table}</div>'
