"""The share of RL recipes that the agent takes, among those that `recipes.csv` does not list and nobody tuned for.

    python -m benchmarks.other_recipes FRAMEWORKS

FRAMEWORKS is a folder with a checkout of each framework, as for `benchmarks.recipes`, and of `ROLL` and `ms-swift`.
This program reads every launcher and configuration there as `relibra doctor --recipe` does, and keeps the RL recipes
with more than one expert-parallel rank, on NVIDIA GPUs, outside of tests. Python launchers count as not read. Writes
`results/other_recipes.json`. Run `python docs/settings.py` afterwards.
"""

import csv
import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.recipes import FOLDERS, FRAMEWORKS, RECIPES
from relibra.cli.recipes.frameworks.registry import Framework
from relibra.cli.recipes.judge import Verdict, judge
from relibra.cli.recipes.read import read_recipe
from relibra.errors import RelibraError

_FRAMEWORKS = FRAMEWORKS | {"ROLL": Framework.ROLL, "ms-swift": Framework.SWIFT}
_STARTS = {
    Framework.SLIME: (r"expert-model-parallel-size", (".sh", ".py")),
    Framework.MILES: (r"expert-model-parallel-size", (".sh", ".py")),
    Framework.VERL: (r"actor_rollout_ref\.actor\.megatron\.", (".sh",)),
    Framework.NEMO_RL: (r"(?m)^policy:|^defaults:", (".yaml",)),
    Framework.SKYRL: (r"megatron_config\.", (".sh",)),
    Framework.AREAL: (r"megatron", (".yaml",)),
    Framework.ROLL: (r"megatron_train", (".yaml",)),
    Framework.SWIFT: (r"--rlhf_type (grpo|gkd|ppo)", (".sh",)),
}
"""What the recipes of a framework contain, and how their names end."""
_NO_RECIPE = re.compile(
    r"(^|/)(tests?|ci|docs)/|debug|npu|ascend|mindspeed|(^|[/_-])(amd|rocm|sft|dpo|rm|eval|convert)([/_.-]|$)", re.I
)
"""Paths of tests, of other hardware, and of other kinds of training."""


def candidates(checkouts: Path, name: str, listed: set[str]) -> Iterator[Path]:
    """Yield the files of a framework that may be recipes, each content once, without those that are listed."""
    sign, suffixes = _STARTS[_FRAMEWORKS[name]]
    seen = {_digest(checkouts / name / path) for path in listed if (checkouts / name / path).is_file()}
    for path in sorted((checkouts / name).rglob("*")):
        if (
            path.suffix not in suffixes
            or not path.is_file()
            or _NO_RECIPE.search(str(path.relative_to(checkouts / name)))
        ):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        is_launcher = path.suffix != ".py" or "execute_train" in text
        if is_launcher and re.search(sign, text) and _digest(path) not in seen:
            seen.add(_digest(path))
            yield path


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def share(checkouts: Path, name: str, listed: set[str]) -> dict[str, Any]:
    """Return how many recipes of a framework are taken, and what refuses the others."""
    verdicts: Counter[Verdict] = Counter()
    blocked: Counter[str] = Counter()
    unreadable = []
    for path in candidates(checkouts, name, listed):
        relative = str(path.relative_to(checkouts / name))
        try:
            recipe = read_recipe(path, _FRAMEWORKS[name], {})
        except RelibraError as error:
            unreadable.append(f"{relative}: {error}")
            continue
        size = recipe.value("expert_model_parallel_size")
        if not isinstance(size, int) or size < 2:
            continue
        judgement = judge({setting: given.value for setting, given in recipe.settings.items()})
        verdicts[judgement.verdict] += 1
        blocked.update({refusal.setting for refusal in judgement.refusals})
        print(f"{judgement.verdict}: {name} {relative}", *sorted({refusal.setting for refusal in judgement.refusals}))
    for each in unreadable:
        print(f"not read: {name} {each}")
    return {
        "framework": name,
        "recipes": verdicts.total(),
        "taken": verdicts.total() - verdicts[Verdict.REFUSED],
        "not_read": len(unreadable),
        "refused_for": dict(blocked.most_common()),
    }


def main() -> None:
    """Print the verdicts, and write the shares."""
    checkouts = Path(sys.argv[1])
    with RECIPES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    shares = []
    for name in _FRAMEWORKS:
        of_framework = (row["path"].partition("#")[0] for row in rows if row["framework"] == name)
        shares.append(share(checkouts, name, {str(Path(FOLDERS.get(name, ""), path)) for path in of_framework}))
        print(shares[-1])
    results.write("other_recipes", shares, source="checkouts of 2026-08-22")


if __name__ == "__main__":
    main()
