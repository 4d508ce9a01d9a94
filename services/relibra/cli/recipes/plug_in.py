"""Which lines of its framework's page a recipe lacks to load relibra, and how it stores checkpoints."""

import re
from collections.abc import Sequence

from relibra.cli.recipes.launch import Launch

_MODULE = re.compile(r"relibra\.(?:integrations|plugins)\.\w+")
_STAYS = re.compile(r"\b(?:RELIBRA_REORDER|relibra\.reorder)\W+never\b")
_RESUMABLE = re.compile(r"\bdist_ckpt_optim_fully_reshardable\W+true\b", re.I)
_PLANNER = re.compile(r"\bRELIBRA_PLANNER\b|\brelibra\.planner\b")


def missing_lines(launch: Launch, lines: Sequence[str]) -> tuple[str, ...]:
    """Return those of `lines` whose module of relibra, or whose planner, a recipe does not name.

    Args:
        launch: the recipe.
        lines: the lines that load relibra. A planner counts as named by a variable and by a setting.
    """
    text = _text(launch)
    names_planner = _PLANNER.search(text) is not None or bool(launch.section("relibra").get("planner"))
    modules = set(_MODULE.findall(text))
    return tuple(
        line
        for line in lines
        if not (names_planner if (module := _MODULE.search(line)) is None else module[0] in modules)
    )


def is_resumable(launch: Launch) -> bool:
    """Return whether a recipe keeps experts in place, or stores their optimizer state so that it loads anywhere."""
    text, stays = _text(launch), launch.section("relibra").get("reorder") == "never"
    return stays or _STAYS.search(text) is not None or _RESUMABLE.search(text) is not None


def _text(launch: Launch) -> str:
    own = (line for line in launch.text.splitlines() if not line.lstrip().startswith("#"))
    return "\n".join((*own, *launch.words))
