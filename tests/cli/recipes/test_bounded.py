"""A recipe cannot make its reader large or slow."""

import time

import pytest

from relibra.cli.recipes import bounded
from relibra.cli.recipes.bounded import call_bounded
from relibra.cli.recipes.frameworks.registry import Framework
from relibra.cli.recipes.read import read_recipe
from relibra.errors import InvalidInput

_LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{inner}'] * 10)}]\n" for inner, name in zip("abcdefgh", "bcdefghi", strict=True)
)
LARGE = {
    "doubled.sh": "A=x; while true; do A=$A$A; done; python3 train.py --a $A",
    "array.sh": 'X=(x); while true; do X+=("${X[@]}"); done; python3 train.py ${X[@]}',
    "counting.sh": "for ((;;)); do :; done; python3 train.py --lr 1",
    "output.sh": "while :; do echo aaaaaaaaaaaaaaaa; program a b c; done; python3 train.py --lr 1",
    "reading.sh": "mapfile A < /dev/zero; read -r B < /dev/zero; while :; do :; done",
    "pattern.sh": "[[ $(printf %0999d 0) =~ ^(0*)*(0*)*(0*)*(0*)*1$ ]]; while :; do :; done",
    "laughs.yaml": _LAUGHS + "j: &j [*i, *i, *i, *i, *i, *i, *i, *i, *i, *i]\n",
    "self.yaml": "a: &a [*a]\n",
    "references.yaml": "a: xxxxxxxxxx${b}${b}\n"
    + "".join(
        f"{a}: ${{{b}}}${{{b}}}${{{b}}}${{{b}}}${{{b}}}\n" for a, b in zip("bcdefghijk", "cdefghijkl", strict=True)
    )
    + "l: xxxxxxxxxx\n",
}


@pytest.mark.parametrize(
    "name",
    [name if name == "array.sh" else pytest.param(name, marks=pytest.mark.long) for name in LARGE],
)
def test_a_recipe_cannot_exhaust_time_or_memory(name, tmp_path):
    (tmp_path / name).write_text(LARGE[name])
    with pytest.raises(
        InvalidInput,
        match=r"within 5 s and 512 MiB, got one that needs more; |comes to an end|starts none",
    ):
        read_recipe(tmp_path / name, Framework.SLIME, {})


def test_a_result_or_an_error_comes_back():
    assert call_bounded(len, [1, 2]) == 2
    with pytest.raises(InvalidInput, match="expected a, got b"):
        call_bounded(_refuse)


def _refuse() -> None:
    raise InvalidInput("expected a, got b")


def test_a_call_ends_at_its_bound_although_it_sleeps(monkeypatch):
    monkeypatch.setattr(bounded, "MAX_SECONDS", 1)
    with pytest.raises(InvalidInput, match="within 1 s"):
        call_bounded(time.sleep, 3600)
