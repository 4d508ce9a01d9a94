"""The share of published recipes that the agent takes, and whether `relibra doctor --recipe` reads them right.

    python -m benchmarks.recipes [FRAMEWORKS]

Reads `recipes.csv`, the effective settings of published recipes, from RELIBRA_RECIPES, by default the folder
`shared/reference/recipes` beside the repository. Each row is judged by the agent's table (`relibra.agent.settings`).

FRAMEWORKS is a folder with a checkout of each framework at the commit that the table names: `slime`, `miles`, `verl`,
`verl-recipe`, `NeMo-RL`, `SkyRL`, `AReaL`. With it, the doctor also reads the files themselves, and this program
compares what it finds with the rows; without it, the last comparison stays. Writes `results/recipes.json`. Run
`python docs/settings.py` afterwards.
"""

import ast
import csv
import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import results
from relibra.cli.recipes.frameworks.registry import Framework
from relibra.cli.recipes.judge import Judgement, Verdict, judge
from relibra.cli.recipes.read import read_recipe
from relibra.errors import RelibraError

RECIPES = Path(
    os.environ.get("RELIBRA_RECIPES", Path(__file__).parents[2] / "shared" / "reference" / "recipes")
).joinpath("recipes.csv")
FRAMEWORKS = {
    "slime": Framework.SLIME,
    "miles": Framework.MILES,
    "verl": Framework.VERL,
    "verl-recipe": Framework.VERL,
    "NeMo-RL": Framework.NEMO_RL,
    "SkyRL": Framework.SKYRL,
    "AReaL": Framework.AREAL,
}
FOLDERS = {"NeMo-RL": "examples"}
"""The folder that a framework's paths start in."""
_NO_SETTINGS = (
    *("framework", "path", "model", "kind", "megatron_core", "note", "lora_on", "replay"),
    "virtual_pipeline_model_parallel_size",  # empty in all rows
)
_BRIDGE_WITH_BF16_WEIGHTS = ("deepseek_v4_flash_pretrain", "gpt_oss_20b_sft")


def settings_of(row: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a row of recipes.csv."""
    found = {name: _value(text) for name, text in row.items() if name not in _NO_SETTINGS}
    if found["fp8"]:
        found |= fp8_of(row)
    if row["lora_on"] != "no":
        found["lora_rank"] = 32
        found["target_modules"] = ["linear_fc1"] if row["lora_on"] == "experts" else ["linear_qkv"]
    return found


def fp8_of(row: Mapping[str, str]) -> dict[str, Any]:
    """Return how a recipe with fp8 scales, which recipes.csv does not say. Read in the recipes, at its commits."""
    if row["framework"] != "Megatron-Bridge":
        return {"fp8_recipe": "blockwise"}
    has_bf16_weights = any(name in row["path"] for name in _BRIDGE_WITH_BF16_WEIGHTS)
    return {
        "fp8_recipe": "mxfp8" if "fp8mx" in row["path"] else "tensorwise",
        "fp8_param_gather": not has_bf16_weights,
    }


def judge_row(row: Mapping[str, str], *, with_core: bool = False) -> Judgement:
    """Return the judgement of a row, with the megatron-core that its framework pins or with any that was tested."""
    return judge(settings_of(row), megatron_core=row["megatron_core"].split(" ")[0] if with_core else "")


def share(rows: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Return, for each framework, how many of its recipes are taken and what refuses the others."""
    found = []
    for framework in sorted({row["framework"] for row in rows}):
        own = [row for row in rows if row["framework"] == framework]
        judged = [judge_row(row) for row in own]
        blocked = Counter(setting for each in judged for setting in {refusal.setting for refusal in each.refusals})
        found.append(
            {
                "framework": framework,
                "recipes": len(own),
                "taken": sum(each.verdict is not Verdict.REFUSED for each in judged),
                "taken_on_pinned_core": sum(
                    judge_row(row, with_core=True).verdict is not Verdict.REFUSED for row in own
                ),
                "refused_for": dict(sorted(blocked.items(), key=lambda item: (-item[1], item[0]))),
            }
        )
    return found


def compare(row: Mapping[str, str], checkouts: Path) -> tuple[str, dict[str, Any]] | None:
    """Return how the doctor's reading of a file differs from its row: a word and the differences; None without a file.

    The word is `same`, `settings` if a setting differs but not the verdict, `verdict` if that differs, or `unreadable`,
    as all Python launchers are.
    """
    framework = row["framework"]
    name = row["path"].partition("#")[0]  # after # stands the variant of a Python launcher
    path = checkouts / framework / FOLDERS.get(framework, "") / name
    if framework not in FRAMEWORKS or not path.is_file():
        return None
    try:
        recipe = read_recipe(path, FRAMEWORKS[framework], {})
    except RelibraError as error:
        return "unreadable", {"error": str(error)}
    read = {setting: given.value for setting, given in recipe.settings.items()}
    told = settings_of(row)
    differing = {
        setting: {"row": told[setting], "read": read.get(setting)}
        for setting in told
        if setting not in ("lora_rank", "target_modules") and _comparable(setting, told) != _comparable(setting, read)
    }
    of_row = {each.setting for each in judge_row(row).refusals}
    of_file = {each.setting for each in judge(read).refusals}
    if of_row != of_file:
        return "verdict", {**differing, "refused for": {"row": sorted(of_row), "read": sorted(of_file)}}
    return ("settings" if differing else "same"), differing


def _value(text: str) -> Any:
    if text in ("", "None"):
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _comparable(name: str, settings: Mapping[str, Any]) -> Any:
    """Return the value of a setting, with Megatron's default where it is not set."""
    value = settings.get(name)
    if name == "expert_tensor_parallel_size":
        return value or settings.get("tensor_model_parallel_size") or 1
    if name == "moe_flex_dispatcher_backend" and settings.get("moe_token_dispatcher_type") != "flex":
        return None
    if name.endswith("_size") or name == "num_distributed_optimizer_instances":
        return value or 1
    if name in ("optimizer", "cuda_graph_impl"):
        return value or {"optimizer": "adam", "cuda_graph_impl": "none"}[name]
    return value or None


def main() -> None:
    """Print and write the shares, and with checkouts the comparison."""
    with RECIPES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    shares = share(rows)
    table = Table("framework", "recipes", "taken", "on the pinned core", "refused for")
    for each in shares:
        why = ", ".join(f"{name} {count}" for name, count in each["refused_for"].items())
        table.add_row(each["framework"], *(str(each[key]) for key in ("recipes", "taken", "taken_on_pinned_core")), why)
    console = Console()
    console.print(table)
    comparison: dict[str, Any] = results.settings("recipes").get("compared", {})
    if len(sys.argv) > 1:
        comparison = {}
        compared = [(row, found) for row in rows if (found := compare(row, Path(sys.argv[1]))) is not None]
        words = Counter((row["framework"], word) for row, (word, _) in compared)
        for (framework, word), count in sorted(words.items()):
            comparison.setdefault(framework, {})[word] = count
        for row, (word, differing) in compared:
            if word != "same":
                console.print(row["framework"], row["path"], word, differing)
        console.print(comparison)
    results.write("recipes", shares, source=str(RECIPES.name), compared=comparison)


if __name__ == "__main__":
    main()
