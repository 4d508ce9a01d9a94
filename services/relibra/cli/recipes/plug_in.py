"""Whether a recipe loads relibra: the lines of its framework's page that it lacks."""

import re
from collections.abc import Sequence

from relibra.cli.recipes.launch import Launch

_MODULE = re.compile(r"relibra\.(?:integrations|plugins)\.\w+")
_PLANNER = re.compile(r"\bRELIBRA_PLANNER\b|\brelibra\.planner\b")


def missing_lines(launch: Launch, lines: Sequence[str]) -> tuple[str, ...]:
    """Return those of `lines` whose module of relibra, or whose planner, a recipe does not name.

    Args:
        launch: the recipe.
        lines: the lines that load relibra. A planner counts as named by a variable and by a setting.
    """
    own = [line for line in launch.text.splitlines() if not line.lstrip().startswith("#")]
    text = "\n".join((*own, *launch.words))
    names_planner = _PLANNER.search(text) is not None or bool(launch.section("relibra").get("planner"))
    modules = set(_MODULE.findall(text))
    return tuple(
        line
        for line in lines
        if not (names_planner if (module := _MODULE.search(line)) is None else module[0] in modules)
    )
