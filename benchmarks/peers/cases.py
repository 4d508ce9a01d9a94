"""The steps that all planners balance: those of docs/evaluation.md."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.evaluation import counts
from benchmarks.evaluation.cases import question
from relibra.evaluation.question import Question
from relibra.evaluation.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model on nodes of 8 H100, with two slots a rank."""

    model: str
    ep: int

    @property
    def name(self) -> str:
        """The case as tables and the command line name it."""
        return f"{self.model}:{self.ep}"

    @property
    def question(self) -> Question:
        """The question of the evaluation."""
        return question(self.model, self.ep)

    def steps(self) -> tuple[Workload, Workload]:
        """Return two consecutive steps."""
        return counts.steps(self.ep) if self.model == "deepseek-v3" else self.question.steps(seed=0)


CASES: Sequence[Case] = (
    Case(model="gpt-oss-20b", ep=8),
    Case(model="gpt-oss-20b", ep=16),
    Case(model="gpt-oss-20b", ep=32),
    Case(model="moonlight-16b", ep=16),
    Case(model="moonlight-16b", ep=32),
    Case(model="qwen3-30b-a3b", ep=32),
    Case(model="deepseek-v3", ep=64),
)
"""gpt-oss-20b and moonlight-16b have recorded routing, qwen3-30b-a3b has drawn routing, and deepseek-v3 the mixed
expert counts of published workloads."""
