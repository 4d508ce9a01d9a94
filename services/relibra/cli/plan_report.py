"""The output of `relibra plan`: tables or JSON."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from relibra.cli.output import print_rows
from relibra.evaluation import ScheduleScore
from relibra.planning import Plan
from relibra.planning.bounds.exact import ExactGap
from relibra.planning.schedule import Packing


@dataclass(frozen=True, kw_only=True)
class PackReport:
    """How sequences were packed, compared with schedules that ignore experts."""

    packing: Packing
    token_budget: int
    reason: str
    pack_time_s: float
    schedules: dict[str, ScheduleScore]


@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """A plan and its figures."""

    plan: Plan
    eplb_imbalance: float
    """Imbalance of EPLB on the same loads and slots."""
    schedule: ScheduleScore
    plan_time_s: float
    packed: PackReport | None
    exact: ExactGap | None

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON values."""
        plan, numbers = self.plan, self.plan.prediction
        said: dict[str, object] = {
            "digest": plan.digest.hex(),
            "imbalance": {
                "identity": numbers.imbalance_before,
                "eplb_oracle": self.eplb_imbalance,
                "planned": numbers.imbalance_after,
                "bound": numbers.imbalance_bound,
            },
            "plan_time_s": round(self.plan_time_s, 3),
            "num_micro_batches": plan.schedule.num_micro_batches,
            "num_moved_experts": numbers.num_moved_experts,
            "num_replicas": numbers.num_replicas,
            "reorder_size_bytes": numbers.reorder_size_bytes,
            "replica_size_bytes": numbers.replica_size_bytes,
            "cross_node_share": self.schedule.cross_node_share,
            "reason": plan.reason,
        }
        if self.exact:
            said["exact"] = asdict(self.exact)
        if self.packed:
            said["packing"] = {
                "token_budget": self.packed.token_budget,
                "pack_time_s": round(self.packed.pack_time_s, 3),
                "reason": self.packed.reason,
                "schedules": {name: asdict(score) for name, score in self.packed.schedules.items()},
            }
        return said

    def print(self, console: Console, output: Path) -> None:
        """Print the report as tables."""
        self._print_figures(console)
        if self.packed:
            _print_schedules(console, self.packed)
            console.print(_sentence(self.packed.reason), highlight=False)
        console.print(_sentence(self.plan.reason), highlight=False)
        console.print(f"Written to {output}", highlight=False)

    def _print_figures(self, console: Console) -> None:
        plan, numbers = self.plan, self.plan.prediction
        model, cluster, num_cells = plan.model, plan.cluster, plan.lower_bound_ML.size
        rows = [
            ("imbalance without balancing", f"{numbers.imbalance_before:.4f}"),
            ("imbalance with EPLB, oracle loads", f"{self.eplb_imbalance:.4f}"),
            ("imbalance planned", f"[bold green]{numbers.imbalance_after:.4f}[/]"),
            ("lower bound of this placement", f"{numbers.imbalance_bound:.4f}"),
        ]
        if self.exact:
            rows.append(("above the exact optimum of this placement", _exact(self.exact)))
        rows += [
            ("plan time", f"{self.plan_time_s:.2f} s"),
            ("experts moved", f"{numbers.num_moved_experts} of {model.num_layers * model.num_experts}"),
            ("replicas", f"{numbers.num_replicas}, {numbers.num_replicas / num_cells:.1f} per cell"),
        ]
        if cluster.num_nodes > 1:
            rows.append(("token copies across nodes", f"{self.schedule.cross_node_share:.1%}"))
        if self.packed:
            rows.append(("packing time", f"{self.packed.pack_time_s:.2f} s"))
        if model.expert_weight_size_bytes:
            rows.append(("bytes to reorder", _size(numbers.reorder_size_bytes)))
            rows.append(("bytes of replicas, once a micro-batch", _size(numbers.replica_size_bytes)))
        else:
            rows.append(("bytes moved", "unknown: pass --expert-bytes"))
        title = (
            f"{model.num_experts} experts on {cluster.num_nodes} x {cluster.gpus_per_node} GPUs, "
            f"{cluster.redundant_slots} redundant slots, {num_cells} cells"
        )
        print_rows(console, ("", ">"), rows, title)


def _size(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / 1e9:.2f} GB"


def _exact(gap: ExactGap) -> str:
    unproven = gap.num_cells - gap.num_proven
    note = f", {unproven} of {gap.num_cells} cells not proven" if unproven else ""
    return f"{gap.mean:.3%} mean, {gap.worst:.2%} worst{note}"


def _print_schedules(console: Console, packed: PackReport) -> None:
    columns: dict[str, Callable[[ScheduleScore], str]] = {
        "imbalance\nplanned": lambda score: f"{score.imbalance:.4f}",
        "token copies\nacross nodes": lambda score: f"{score.cross_node_share:.1%}",
        "most tokens\nof a rank": lambda score: f"{score.largest_tokens}",
        "attention\nspread": lambda score: f"{score.attention_spread:.3f}",
    }
    rows = [
        (name.replace("_", " "), *(show(score) for show in columns.values()))
        for name, score in packed.schedules.items()
    ]
    headings = ("!schedule", *(f">{each}" for each in columns))
    print_rows(console, headings, rows, f"schedules, token budget {packed.token_budget}")


def _sentence(reason: str) -> str:
    return f"{reason[0].upper()}{reason[1:]}."
