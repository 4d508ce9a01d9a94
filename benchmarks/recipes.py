"""The share of published recipes that the agent takes, and whether `relibra doctor --recipe` reads them right.

    python -m benchmarks.recipes [FRAMEWORKS]

Reads `recipes.csv`, the effective settings of published recipes, from RELIBRA_RECIPES, by default the folder
`shared/reference/recipes` beside the repository. Each row is judged by the agent's table (`relibra.agent.settings`).
Writes `results/recipes.json`. Run `python docs/settings.py` afterwards.

FRAMEWORKS is a folder with a checkout of each framework at the commit that the table names: `slime`, `miles`, `verl`,
`verl-recipe`, `NeMo-RL`, `SkyRL`, `AReaL`, and of `ROLL` and `ms-swift`. With it, this program also compares what the
doctor reads in the files with the rows (without it, the last comparison stays), and lets the doctor read the recipes
that are in no row, which nobody tuned for: RL with more than one expert-parallel rank, on NVIDIA GPUs, outside of
tests. Python launchers count as not read. Writes `results/other_recipes.json`.
"""

import ast
import csv
import hashlib
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import results
from relibra.cli.recipes.frameworks.registry import Framework
from relibra.cli.recipes.judge import Judgement, Verdict, judge
from relibra.cli.recipes.read import read_recipe
from relibra.errors import RelibraError

RECIPES = Path(
    os.environ.get("RELIBRA_RECIPES", Path(__file__).parents[2] / "shared" / "reference" / "recipes")
).joinpath("recipes.csv")
_FRAMEWORKS = {
    "slime": Framework.SLIME,
    "miles": Framework.MILES,
    "verl": Framework.VERL,
    "verl-recipe": Framework.VERL,
    "NeMo-RL": Framework.NEMO_RL,
    "SkyRL": Framework.SKYRL,
    "AReaL": Framework.AREAL,
    "ROLL": Framework.ROLL,
    "ms-swift": Framework.SWIFT,
}
_FOLDERS = {"NeMo-RL": "examples"}
"""The folder that a framework's paths start in."""
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
    core = row["megatron_core"].split(" ")[0] if with_core else ""
    return judge(settings_of(row), megatron_core=core, framework=_FRAMEWORKS.get(row["framework"], ""))


def share(rows: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return, for each framework, how many of its recipes are taken and what refuses the others."""
    shares = []
    for framework in sorted({row["framework"] for row in rows}):
        own = [row for row in rows if row["framework"] == framework]
        on_pinned_core = _counted([judge_row(row, with_core=True) for row in own])["taken"]
        counted = _counted([judge_row(row) for row in own])
        shares.append({"framework": framework, **counted, "taken_on_pinned_core": on_pinned_core})
    return shares


def _counted(judgements: Sequence[Judgement]) -> dict[str, Any]:
    blocked = Counter(setting for each in judgements for setting in {refusal.setting for refusal in each.refusals})
    return {
        "recipes": len(judgements),
        "taken": sum(each.verdict is not Verdict.REFUSED for each in judgements),
        "refused_for": dict(sorted(blocked.items(), key=lambda item: (-item[1], item[0]))),
    }


def compared(rows: Sequence[Mapping[str, str]], checkouts: Path) -> dict[str, dict[str, int]]:
    """Count, for each framework, how the doctor's reading of files differs from the rows; print what differs.

    The words are `same`, `settings` if a setting differs but not what is refused, `verdict` if that differs, and
    `unreadable`, as all Python launchers are.
    """
    words = Counter[tuple[str, str]]()
    for row in rows:
        path = _listed(row, checkouts)
        if not path.is_file():
            continue
        try:
            settings = _read(path, row["framework"])
        except RelibraError as error:
            word, differing = "unreadable", {"error": str(error)}
        else:
            word, differing = _difference(row, settings)
        words[row["framework"], word] += 1
        if word != "same":
            print(row["framework"], row["path"], word, differing)
    frameworks = sorted({framework for framework, _ in words})
    return {one: {word: n for (other, word), n in sorted(words.items()) if other == one} for one in frameworks}


def _difference(row: Mapping[str, str], read: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    told = settings_of(row)
    differing: dict[str, Any] = {
        name: {"row": told[name], "read": read.get(name)}
        for name in told
        if name not in ("lora_rank", "target_modules") and _comparable(name, told) != _comparable(name, read)
    }
    of_row, of_file = (
        {each.setting for each in one.refusals}
        for one in (judge_row(row), judge(dict(read), framework=_FRAMEWORKS[row["framework"]]))
    )
    if of_row != of_file:
        return "verdict", {**differing, "refused for": {"row": sorted(of_row), "read": sorted(of_file)}}
    return ("settings" if differing else "same"), differing


def others(rows: Sequence[Mapping[str, str]], checkouts: Path) -> Iterator[dict[str, Any]]:
    """Yield, for each framework, how many recipes that are in no row are taken; print every verdict."""
    for framework in _FRAMEWORKS:
        judgements, not_read = [], 0
        listed = {_listed(row, checkouts) for row in rows if row["framework"] == framework}
        for path in _candidates(checkouts / framework, framework, listed):
            try:
                settings = _read(path, framework)
            except RelibraError as error:
                print(f"not read: {path}: {error}")
                not_read += 1
                continue
            size = settings.get("expert_model_parallel_size")
            if isinstance(size, int) and size > 1:
                judgements.append(judge(settings, framework=_FRAMEWORKS[framework]))
                print(f"{judgements[-1].verdict}: {path}", *sorted(each.setting for each in judgements[-1].refusals))
        yield {"framework": framework, **_counted(judgements), "not_read": not_read}


def _candidates(folder: Path, framework: str, listed: set[Path]) -> Iterator[Path]:
    """Yield the files of a framework that may be recipes, each content once, without those that are listed."""
    sign, suffixes = _STARTS[_FRAMEWORKS[framework]]
    seen = {_digest(path) for path in listed if path.is_file()}
    for path in sorted(folder.rglob("*")):
        is_out = path.suffix not in suffixes or _NO_RECIPE.search(str(path.relative_to(folder)))
        if is_out or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        is_launcher = path.suffix != ".py" or "execute_train" in text
        if is_launcher and re.search(sign, text) and _digest(path) not in seen:
            seen.add(_digest(path))
            yield path


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def _listed(row: Mapping[str, str], checkouts: Path) -> Path:
    """Return the path of the file of a row; after # stands the variant of a Python launcher."""
    return checkouts / row["framework"] / _FOLDERS.get(row["framework"], "") / row["path"].partition("#")[0]


def _read(path: Path, framework: str) -> dict[str, Any]:
    """Return what the doctor reads in a file.

    Raises:
        RelibraError: the doctor cannot read it.
    """
    recipe = read_recipe(path, _FRAMEWORKS[framework], {})
    return {setting: given.value for setting, given in recipe.settings.items()}


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
    """Print and write the shares, and with checkouts the comparison and the other recipes."""
    with RECIPES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    comparison: dict[str, Any] = results.settings("recipes").get("compared", {})
    if len(sys.argv) > 1:
        checkouts = Path(sys.argv[1])
        comparison = compared([row for row in rows if row["framework"] in _FRAMEWORKS], checkouts)
        print(comparison)
        of_others = list(others(rows, checkouts))
        results.show("recipes in no row", of_others)
        results.write("other_recipes", of_others)
    results.show("recipes in rows", share(rows))
    results.write("recipes", share(rows), source=str(RECIPES.name), compared=comparison)


if __name__ == "__main__":
    main()
