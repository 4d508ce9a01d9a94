"""Checks whether the agent would run with the settings of a recipe."""

from pathlib import Path
from typing import Any

from relibra.agent.setting import Refusal
from relibra.agent.settings import SETTINGS
from relibra.cli.checks.finding import Finding, failed, ok, skipped, warning
from relibra.cli.recipes.frameworks.registry import Framework
from relibra.cli.recipes.judge import Verdict, judge
from relibra.cli.recipes.read import read_recipe
from relibra.cli.recipes.recipe import Recipe
from relibra.cli.recipes.shipped import framework_data
from relibra.errors import InvalidInput

_MAX_NAMES = 40


def examine(path: Path | None, framework: Framework | None, given: list[str]) -> list[Finding]:
    """Return the findings about a recipe.

    Args:
        path: the recipe; None if none was asked about.
        framework: its framework; None to tell it from the file.
        given: variables or options that the recipe takes from outside, as NAME=VALUE.

    Raises:
        InvalidInput: the recipe cannot be read.
    """
    if path is None:
        if framework is not None or given:
            raise InvalidInput.of("--recipe", expected="a file, because --framework or --set was given", got="none")
        return [skipped("recipe", "not checked: pass --recipe")]
    return judge_recipe(read_recipe(path, framework, _pairs(given)))


def judge_recipe(recipe: Recipe) -> list[Finding]:
    """Return the findings about a recipe: the verdict, settings to change, doubts, and the settings that run."""
    values = {name: given.value for name, given in recipe.settings.items()}
    judgement = judge(values, megatron_core=recipe.megatron_core, framework=recipe.framework)
    data = framework_data(recipe.framework)

    def said(refusal: Refusal, text: str) -> str:
        given = recipe.settings.get(refusal.setting)
        origin = "Megatron's default" if given is None else given.origin
        if refusal.setting == "megatron-core":
            origin = f"{recipe.framework} at {data['commit']} pins it"
        return f"{text} ({origin})"

    found = [failed("recipe", said(each, each.reason), each.fix, each.cost) for each in judgement.refusals]
    found += [warning("recipe", said(each, each.what), each.fix, each.cost) for each in judgement.warnings]
    if "megatron" in data:
        reason = f"{recipe.framework} runs on {data['megatron']}, which was not tested"
        found.append(warning("recipe", reason, "try attaching in a short run first"))
    by_hand = "give the value with --set NAME=VALUE, or check it by hand"
    found += [warning("recipe", each, by_hand) for each in recipe.warnings]
    if names := recipe.unknown:
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        was = "s were" if len(names) > 1 else " was"
        reason = f"{len(names)} unknown option{was} not judged: {', '.join(names[:_MAX_NAMES])}{more}"
        fix = "see docs/integration/settings.md; the agent cannot refuse what it does not know"
        found.append(warning("recipe", reason, fix))
    judged = {each.setting for each in (*judgement.refusals, *judgement.warnings)}
    runs = [
        ok("recipe", f"{each.name}={shown(values[each.name])} ({recipe.settings[each.name].origin})")
        for each in SETTINGS
        if each.name in values and each.name not in judged
    ]
    return [_verdict(recipe, found, num_refused=len(judgement.refusals)), *found, *runs]


def _verdict(recipe: Recipe, found: list[Finding], *, num_refused: int) -> Finding:
    model = recipe.model or "a model that the recipe does not name"
    family = f", family {recipe.family}" if recipe.family else ""
    about = f"{recipe.framework}, {model}{family}, {len(recipe.settings)} settings"
    if num_refused:
        count = f"{num_refused} setting{'s' if num_refused > 1 else ''}"
        return failed("recipe", f"{Verdict.REFUSED} for {count}: {about}", "change what follows")
    if found:
        return warning("recipe", f"{Verdict.WARNED}: {about}", "read what follows")
    return ok("recipe", f"{Verdict.TAKEN}: {about}")


def shown(value: Any) -> str:
    """Return a value for people."""
    return value if isinstance(value, str) else repr(value)


def _pairs(given: list[str]) -> dict[str, str]:
    pairs = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise InvalidInput.of("--set", expected="NAME=VALUE", got=each)
        pairs[name] = value
    return pairs
