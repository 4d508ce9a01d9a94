"""Checks whether the agent would run with the settings of a recipe."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relibra.agent.setting import Refusal
from relibra.agent.settings import SETTINGS
from relibra.cli.checks.finding import Finding, failed, ok, skipped, warning
from relibra.cli.recipes.frameworks.registry import Framework
from relibra.cli.recipes.judge import REPLAY, Verdict, judge
from relibra.cli.recipes.read import read_recipe
from relibra.cli.recipes.recipe import Recipe
from relibra.cli.recipes.shipped import framework_data
from relibra.errors import InvalidInput

_MAX_NAMES = 40
_USUAL_GPUS_PER_NODE = 8


def examine(path: Path | None, framework: Framework | None, variables: list[str]) -> list[Finding]:
    """Return the findings about a recipe.

    Args:
        path: the recipe; None if none was asked about.
        framework: its framework; None to tell it from the file.
        variables: variables or options that the recipe takes from outside, as NAME=VALUE.

    Raises:
        InvalidInput: the recipe cannot be read.
    """
    if path is None:
        if framework is not None or variables:
            raise InvalidInput.of("--recipe", expected="a file, because --framework or --set was given", got="none")
        return [skipped("recipe", "not checked: pass --recipe")]
    return judge_recipe(read_recipe(path, framework, _pairs(variables)))


def judge_recipe(recipe: Recipe) -> list[Finding]:
    """Return the findings about a recipe: the verdict, settings to change, doubts, and the settings that run."""
    values = {name: setting.value for name, setting in recipe.settings.items()}
    judged_as = {"megatron_core": recipe.megatron_core, "framework": recipe.framework}
    judgement = judge(values, **judged_as)
    # Say now what the agent refuses only with replay, and not after somebody changed the recipe.
    refused = {refusal.reason for refusal in judgement.refusals}
    replaying = judge(values | {REPLAY: True}, **judged_as).refusals
    data = framework_data(recipe.framework)
    needs = [
        _in_own_words(refusal.alternative, data.get("written", {}))
        for refusal in replaying
        if refusal.reason not in refused
    ]

    def said(refusal: Refusal, text: str) -> str:
        setting = recipe.settings.get(refusal.setting)
        origin = "Megatron's default" if setting is None else setting.origin
        if refusal.setting == "megatron-core":
            origin = f"{recipe.framework} at {data['commit']} pins it"
        return f"{text} ({origin})"

    written = data.get("written", {})
    findings = [
        failed("recipe", said(refusal, refusal.reason), _in_own_words(refusal.fix, written), refusal.cost)
        for refusal in judgement.refusals
    ]
    for doubt in judgement.warnings:
        lines = data.get("replay", ()) if doubt.setting == REPLAY else ()
        also = f", and use {' and '.join(needs)}" if needs else ""
        fix = f"add {' and '.join(lines)}{also}, or leave it" if lines else _in_own_words(doubt.fix, written)
        findings.append(warning("recipe", said(doubt, doubt.what), fix, doubt.cost))
    if "megatron" in data:
        reason = f"{recipe.framework} runs on {data['megatron']}, which was not tested"
        findings.append(warning("recipe", reason, "try attaching in a short run first"))
    by_hand = "give the value with --set NAME=VALUE, or check it by hand"
    findings += [warning("recipe", text, by_hand) for text in recipe.warnings]
    if names := recipe.unknown:
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        was = "s were" if len(names) > 1 else " was"
        reason = f"{len(names)} unknown option{was} not judged: {', '.join(names[:_MAX_NAMES])}{more}"
        fix = "see docs/integrations/settings.md; the agent cannot refuse what it does not know"
        findings.append(warning("recipe", reason, fix))
    judged = {refusal.setting for refusal in (*judgement.refusals, *judgement.warnings)}
    runs = [
        ok("recipe", f"{setting.name}={show_value(values[setting.name])} ({recipe.settings[setting.name].origin})")
        for setting in SETTINGS
        if setting.name in values and setting.name not in judged
    ]
    verdict = _verdict(recipe, findings, num_refused=len(judgement.refusals))
    return [verdict, *_plug_in(recipe, data.get("plug_in", ())), *_checkpoint(recipe, data), *findings, *runs]


def _in_own_words(fix: str, written: Mapping[str, str]) -> str:
    """Return a fix with each setting of Megatron, `NAME=VALUE`, where a recipe of the framework sets it.

    Args:
        fix: the fix in Megatron's names.
        written: what stands before the name, by the configuration of Megatron or by the name; empty for Megatron's own.
    """
    parts = {setting.name: setting.part for setting in SETTINGS}

    def place(match: re.Match[str]) -> str:
        name = match[1]
        return written.get(name, written.get(parts[name], "") if name in parts else "") + match[0]

    return re.sub(r"(?<![\w.])(\w+)=", place, fix)


def _plug_in(recipe: Recipe, lines: Sequence[str]) -> list[Finding]:
    """Return whether the recipe loads relibra, for a framework that has a plug-in."""
    if not lines:
        return []
    missing = recipe.missing_lines
    if not missing:
        return [ok("recipe: plug-in", f"it has what a recipe of {recipe.framework} says to load relibra")]
    reason = f"{len(missing)} of {len(lines)} lines that load relibra are not in it, nor in what it reads"
    page = {"swift": "ms-swift", "miles": "slime"}.get(recipe.framework, recipe.framework)
    fix = f"add {' and '.join(missing)}, unless a launcher or the environment has it; see docs/integrations/{page}.md"
    return [warning("recipe: plug-in", reason, fix)]


def _checkpoint(recipe: Recipe, data: Mapping[str, Any]) -> list[Finding]:
    """Return a warning where a job may not resume from a checkpoint that the framework saved alone."""
    cut = recipe.value("expert_tensor_parallel_size") or recipe.value("tensor_model_parallel_size") or 1
    num_ranks, is_prepared = recipe.value("expert_model_parallel_size", 1), recipe.is_resumable
    if not (isinstance(num_ranks, int) and isinstance(cut, int)) or num_ranks == 1 or is_prepared:
        return []
    if "stays" not in data or num_ranks * cut <= _USUAL_GPUS_PER_NODE:
        return []
    reason = (
        f"its EP groups span {num_ranks * cut} ranks, more than a node of {_USUAL_GPUS_PER_NODE} GPUs, so experts move;"
        f" a checkpoint that {recipe.framework} alone has saved does not resume"
    )
    first = f"save it with {data['resumable']} before, or " if "resumable" in data else "begin anew, or "
    return [warning("recipe: checkpoint", reason, f"if you resume: {first}keep experts in place with {data['stays']}")]


def _verdict(recipe: Recipe, findings: list[Finding], *, num_refused: int) -> Finding:
    model = recipe.model or "a model that the recipe does not name"
    family = f", family {recipe.family}" if recipe.family else ""
    about = f"{recipe.framework}, {model}{family}, {len(recipe.settings)} settings"
    if num_refused:
        count = f"{num_refused} setting{'s' if num_refused > 1 else ''}"
        return failed("recipe", f"{Verdict.REFUSED} for {count}: {about}", "change what follows")
    if findings:
        return warning("recipe", f"{Verdict.WARNED}: {about}", "read what follows")
    return ok("recipe", f"{Verdict.TAKEN}: {about}")


def show_value(value: Any) -> str:
    """Return a value for people."""
    return value if isinstance(value, str) else repr(value)


def _pairs(arguments: list[str]) -> dict[str, str]:
    pairs = {}
    for pair in arguments:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InvalidInput.of("--set", expected="NAME=VALUE", got=pair)
        pairs[name] = value
    return pairs
