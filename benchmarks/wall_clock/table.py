"""Write the predicted and measured figures of all cases into docs/evaluation.md, from the results on disk.

python -m benchmarks.wall_clock.table
"""

import json
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.evaluation.page import markdown, write_table

_RANKS, _TOKENS, _SIGMAS = (2, 4), (2048, 4096), (0.75, 1.5, 2.5)


def wall_clock() -> str:
    """Return a line for every case; a case that nobody has run says so."""
    cases = [(ranks, tokens, sigma) for ranks in _RANKS for tokens in _TOKENS for sigma in _SIGMAS]
    headings = ("ranks", "tokens", "skew", "plain", "of balance", "predicted", "gain", "predicted", "gain is off by")
    return markdown(headings, [_line(*case) for case in cases])


def _line(ranks: int, tokens: int, sigma: float) -> tuple[object, ...]:
    path = results.RESULTS / f"wall_clock-{ranks}-{tokens}-{sigma:g}.json"
    if not path.is_file():
        return (ranks, tokens, sigma, *["unmeasured"] * 6)
    row: dict[str, Any] = json.loads(path.read_text())["rows"][0]
    predicted = row["predicted"]
    return (
        ranks,
        tokens,
        sigma,
        f"{predicted['plain_imbalance']:.2f}",
        f"{row['of_balance']:.1%}",
        f"{predicted['of_balance']:.1%}",
        f"{row['gain']:.3f}x",
        f"{predicted['gain']:.3f}x",
        f"{predicted['gain'] / row['gain'] - 1:+.1%}",
    )


if __name__ == "__main__":
    write_table(Path(__file__).parents[2] / "docs" / "evaluation.md", wall_clock)
