import shutil
import subprocess
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relibra.cli.recipes.shell.arithmetic import NotANumber, evaluate
from relibra.cli.recipes.shell.unknown import is_known

EXPRESSIONS = [
    "1 + 2 * 3 - 4 / 3", "-7 / 2", "-7 % 3", "(1 + 2) * 3", "5 > 3 && 2 >= 2 || 0", "0 || 0", "a = 4", "a++",
    "a--", "a += 5", "a *= 2 + 1", "0x10 + 1", "b++", "--a", "++c", "a == 3",
    "\n 1\n + 2", "-a - -2", "7 / -2", "7 % -2", "010 + 0 + 100", "z + 1", "-z",
]  # fmt: skip
OTHERS = [
    "1 < 2 == 1",
    "2 ** 3",
    "1 << 4",
    "6 & 3",
    "0 ? 1 : 2",
    "a = 4, a * 2",
    "a <<= 1",
    "~5",
    "!(a == 3)",
    "!a == 0",
    "!0 + 5",
    "a--1",
]
"""bash knows these. Python binds some of their operators otherwise, so their values are unknown."""


def value(expression: str) -> int:
    variables = {"a": "3", "z": "017"}
    return evaluate(expression, variables.get, variables.__setitem__)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_values_are_those_of_bash():
    script = "\n".join(f"a=3; z=017; echo $(( {each} ))" for each in EXPRESSIONS)
    said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert [value(each) for each in EXPRESSIONS] == [int(each) for each in said]


@pytest.mark.parametrize(
    "expression", [*OTHERS, "1 +", "1 / 0", "(1", "1 2", "b", "b * 8", "9999999999 * 9999999999", "1.5", "$x", "08"]
)
def test_what_has_no_value_is_refused(expression):
    with pytest.raises(NotANumber):
        value(expression)


@pytest.mark.parametrize("expression", ["a = 1 ? 8 : 1", "a <<= 1", "a = b * 2", "a++ + 1", "2 * ++a"])
def test_a_variable_that_is_given_what_has_no_value_is_unknown(expression):
    variables = {"a": "3"}
    with pytest.raises(NotANumber):
        evaluate(expression, variables.get, variables.__setitem__)
    assert not is_known(variables["a"])


@given(st.text(alphabet="0123456789ab+-*/%<>=!&|()?:, ", max_size=30))
def test_any_text_has_a_value_or_is_refused(text):
    with suppress(NotANumber):
        assert isinstance(value(text), int)
