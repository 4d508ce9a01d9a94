"""Writes the tables of `integrations/settings.md` from the code that decides: `python docs/settings.py`."""

import json
import re
from pathlib import Path

from relibra.agent.needs import RAN
from relibra.agent.refusals import adapter_that_drifts, adapter_without_sum
from relibra.agent.setting import Part, Setting, State
from relibra.agent.settings import SETTINGS

PAGE = Path(__file__).parent / "integrations" / "settings.md"
_RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
_RESULT, _OTHERS = _RESULTS / "recipes.json", _RESULTS / "other_recipes.json"
_TABLE = re.compile(r"(?<=<!-- )([a-z ]+)( -->\n).*?(?=<!-- / -->)", re.S)


def rewritten(page: str) -> str:
    """Return the page with tables of the current settings and figures.

    Raises:
        KeyError: the page asks for a table that does not exist.
    """
    tables = {
        "runs": _runs,
        "refused": _refused,
        "versions": _versions,
        "share": _share,
        "others": _others,
        "read": _read,
    }
    return _TABLE.sub(lambda match: f"{match[1]}{match[2]}\n{tables[match[1]]()}\n\n", page)


def _runs() -> str:
    rows = [
        f"| `{each.name}` | {each.part} | {_cell(each.runs)} | {_test(each)} |"
        for each in SETTINGS
        if each.state is not State.REFUSED
    ]
    return "\n".join(["| setting | of | values that run | tested in |", "|---|---|---|---|", *rows])


def _refused() -> str:
    rows = [
        f"| `{each.name}` | {_cell(each.what)} | {_cell(each.instead)} | {_cell(each.cost)} |"
        for part in Part
        for each in SETTINGS
        if each.part is part and each.state is not State.RUNS
    ]
    adapters = "LoRA matrices of grouped experts"
    rows += [
        f"| `{refusal.setting}` | {_cell(refusal.what)} | {_cell(refusal.alternative)} | {_cell(refusal.cost)} |"
        for refusal in (adapter_without_sum(adapters), adapter_that_drifts(adapters))
    ]
    return "\n".join(["| setting | refused | use instead | which costs |", "|---|---|---|---|", *rows])


def _versions() -> str:
    return (
        f"The tests ran on megatron-core {', '.join(RAN[:-1])} and {RAN[-1]} ([versions](versions.md)). No newer "
        "number is refused:\n`attach` checks what it hooks into, and names what is missing."
    )


def _share() -> str:
    result = json.loads(_RESULT.read_text(encoding="utf-8"))
    rows, total = [], [0, 0, 0]
    for each in result["rows"]:
        numbers = [each["recipes"], each["taken"], each["taken_on_pinned_core"]]
        total = [one + other for one, other in zip(total, numbers, strict=True)]
        why = ", ".join(f"`{name}` {count}" for name, count in each["refused_for"].items())
        rows.append(f"| {each['framework']} | {' | '.join(map(str, numbers))} | {why} |")
    rows.append(f"| all | {' | '.join(map(str, total))} | |")
    head = "| framework | recipes | taken | taken with the megatron-core it pins | refused for |"
    dated = f"Judged on {result['machine']['date']}:"
    return "\n".join([dated, "", head, "|---|---|---|---|---|", *rows])


def _others() -> str:
    rows, total = [], [0, 0, 0]
    for each in json.loads(_OTHERS.read_text(encoding="utf-8"))["rows"]:
        numbers = [each["recipes"], each["taken"], each["not_read"]]
        total = [one + other for one, other in zip(total, numbers, strict=True)]
        why = ", ".join(f"`{name}` {count}" for name, count in each["refused_for"].items())
        rows.append(f"| {each['framework']} | {' | '.join(map(str, numbers))} | {why} |")
    head = "| framework | recipes | taken | files not read | refused for |"
    return "\n".join([head, "|---|---|---|---|---|", *rows, f"| all | {' | '.join(map(str, total))} | |"])


def _read() -> str:
    compared = json.loads(_RESULT.read_text(encoding="utf-8"))["settings"]["compared"]
    rows, total = [], [0, 0, 0, 0]
    for framework, words in compared.items():
        same = words.get("same", 0)
        numbers = [sum(words.values()), words.get("unreadable", 0), same, same + words.get("settings", 0)]
        total = [one + other for one, other in zip(total, numbers, strict=True)]
        rows.append(f"| {framework} | {' | '.join(map(str, numbers))} |")
    head = "| framework | files | not read | every setting as in the list | the same settings refused |"
    return "\n".join([head, "|---|---|---|---|---|", *rows, f"| all | {' | '.join(map(str, total))} |"])


def _test(setting: Setting) -> str:
    return f"`tests/{setting.tested}`" if setting.tested else "not tested"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
