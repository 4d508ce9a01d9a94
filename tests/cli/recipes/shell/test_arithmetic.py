import shutil
import subprocess
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relibra.cli.recipes.shell.arithmetic import NotANumber, evaluate

EXPRESSIONS = [
    "1 + 2 * 3 - 4 / 3", "-7 / 2", "-7 % 3", "2 ** 3 ** 1", "(1 + 2) * 3", "!0 + ~5", "1 << 4 | 3", "6 & 3 ^ 1",
    "5 > 3 && 2 >= 2 || 0", "0 ? 1 : 2", "a = 4, a * 2", "a++ + a", "--a", "a += 5", "0x10 + 1", "b", "1 < 2 == 1",
]  # fmt: skip


def value(expression: str) -> int:
    variables = {"a": "3"}
    return evaluate(expression, lambda name: variables.get(name, ""), variables.__setitem__)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_values_are_those_of_bash():
    script = "\n".join(f"a=3; echo $(( {each} ))" for each in EXPRESSIONS)
    said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert [value(each) for each in EXPRESSIONS] == [int(each) for each in said]


@pytest.mark.parametrize("expression", ["1 +", "1 / 0", "(1", "1 2", "9 ** 9 ** 9", "1 << 10000", "1.5", "$x"])
def test_what_has_no_value_is_refused(expression):
    with pytest.raises(NotANumber):
        value(expression)


@given(st.text(alphabet="0123456789ab+-*/%<>=!&|()?:, ", max_size=30))
def test_any_text_has_a_value_or_is_refused(text):
    with suppress(NotANumber):
        assert isinstance(value(text), int)
