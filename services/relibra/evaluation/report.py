"""Write a page that compares policies: one self-contained HTML file with its figures."""

import html
from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go

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
    "bubble_s": ("pipeline bubble", "#c0c0c0"),
}
_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #8884 }
th:first-child, td:first-child { text-align: left }
tr.best { font-weight: 600; background: #2a7f6230 }
"""
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
    figures = [
        _figure(_throughput(outcomes), "Throughput as a share of perfect balance", first=True),
        _figure(_step_times(outcomes), "The parts of a step, in seconds", first=False),
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><link rel="icon" href="data:,">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style><h1>{html.escape(title)}</h1><p>{html.escape(setting)}</p>"
        f"{''.join(figures)}{_table(outcomes, cluster.num_ranks)}</html>"
    )


def _throughput(outcomes: Sequence[Outcome]) -> go.Figure:
    figure = go.Figure(
        go.Bar(
            x=[each.of_balanced for each in outcomes],
            y=[each.policy for each in outcomes],
            orientation="h",
            text=[f"{each.of_balanced:.1%}" for each in outcomes],
            marker_color=["#2a7f62" if each.policy.startswith("relibra") else "#9aa5b1" for each in outcomes],
        )
    )
    figure.add_vline(x=1, line_dash="dot", line_color=_INK)
    figure.update_xaxes(tickformat=".0%", rangemode="tozero")
    return figure


def _step_times(outcomes: Sequence[Outcome]) -> go.Figure:
    figure = go.Figure()
    for part, (label, colour) in _PARTS.items():
        seconds = [getattr(each.step, part) for each in outcomes]
        if any(seconds):
            policies = [each.policy for each in outcomes]
            figure.add_bar(x=seconds, y=policies, orientation="h", name=label, marker_color=colour)
    figure.update_layout(barmode="stack", legend={"orientation": "h", "traceorder": "normal"})
    return figure


def _figure(figure: go.Figure, title: str, *, first: bool) -> str:
    figure.update_yaxes(autorange="reversed", color=_INK, automargin=True)
    figure.update_xaxes(color=_INK, gridcolor="#8883", zeroline=False)
    figure.update_layout(
        template="none",
        font={"color": _INK, "family": "system-ui, sans-serif"},
        paper_bgcolor=_CLEAR,
        plot_bgcolor=_CLEAR,
        height=460,
        margin={"l": 10, "r": 20, "t": 10, "b": 40},
    )
    drawing = figure.to_html(
        full_html=False, include_plotlyjs=first, config={"displayModeBar": False, "responsive": True}
    )
    return f"<h2>{html.escape(title)}</h2>{drawing}"


def _table(outcomes: Sequence[Outcome], num_ranks: int) -> str:
    best = max(outcomes, key=lambda each: each.of_balanced)
    headings = (
        "policy",
        "step, s",
        "over plain",
        "range",
        "of balanced",
        "range",
        "imbalance",
        "replicas per cell",
        "experts moved",
        "sent, GB per GPU",
        "planning, s",
    )
    rows = [
        (
            each.policy,
            f"{each.step.total_s:.2f}",
            f"{each.over_plain:.3f}",
            f"{each.over_plain_range.low:.2f} to {each.over_plain_range.high:.2f}",
            f"{each.of_balanced:.1%}",
            f"{each.of_balanced_range.low:.1%} to {each.of_balanced_range.high:.1%}",
            f"{each.imbalance:.4f}",
            f"{each.replicas_per_cell:.1f}",
            str(each.num_moved_experts),
            f"{each.sent_bytes / num_ranks / 1e9:.1f}",
            f"{each.decide_time_s:.2f}",
        )
        for each in outcomes
    ]
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in headings)
    body = ""
    for row in rows:
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
        body += f"<tr class=best>{cells}</tr>" if row[0] == best.policy else f"<tr>{cells}</tr>"
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<h2>Figures</h2><div class=scroll tabindex=0 role=region aria-label="Figures">{table}</div>'
