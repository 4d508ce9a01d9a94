"""The variables of a script that is being read."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from relibra.cli.recipes.shell.arithmetic import NotANumber, evaluate
from relibra.cli.recipes.shell.unknown import unknown
from relibra.errors import InvalidInput

_MAX_LETTERS = 1 << 20
"""The longest text, and the most letters and elements of an array. Doubling a variable in a loop ends here."""

Array = dict[str, str]
"""The elements by index, in order. Indices are numbers as text, or keys."""


@dataclass(slots=True)
class Variables:
    """What a script has assigned, and the place it is at."""

    script: Path
    values: dict[str, str | Array] = field(default_factory=dict)
    positional: list[str] = field(default_factory=list)
    keyed: set[str] = field(default_factory=set)
    """The names of arrays with keys."""
    folder: Path = field(default_factory=Path)
    """The folder that `cd` has gone to."""

    def copied(self) -> "Variables":
        """Return variables for a subshell."""
        values = {name: dict(value) if isinstance(value, dict) else value for name, value in self.values.items()}
        return Variables(self.script, values, list(self.positional), set(self.keyed), self.folder)

    def text(self, name: str) -> str | None:
        """Return the value of a variable or positional parameter, or None if it is not set."""
        if name.isdigit():
            at = int(name)
            if at == 0:
                return str(self.script)
            return self.positional[at - 1] if at <= len(self.positional) else None
        special = {"#": str(len(self.positional)), "?": "0", "PWD": str(self.folder), "BASH_SOURCE": str(self.script)}
        if name in special:
            return special[name]
        if name in ("@", "*"):
            return " ".join(self.positional) if self.positional else None
        if name in ("$", "!", "-"):
            return unknown(f"${name}")
        value = self.values.get(name)
        if isinstance(value, dict):
            return next(iter(value.values()), None)
        return value

    def array(self, name: str) -> Array:
        """Return the elements of a variable; a text has one, and a variable that is not set has none."""
        if name == "BASH_SOURCE":
            return {"0": str(self.script)}
        value = self.values.get(name)
        if value is None:
            return {}
        return value if isinstance(value, dict) else {"0": value}

    def assign(self, name: str, value: str, *, is_appended: bool = False, index: str | None = None) -> None:
        """Assign a text to a variable or to an element of an array."""
        _check_size(name, len(value) + (len(self.text(name) or "") if is_appended else 0))
        if index is None and not isinstance(self.values.get(name), dict):
            self.values[name] = (self.text(name) or "") + value if is_appended else value
            return
        array = dict(self.array(name))
        key = "0" if index is None else index if name in self.keyed else str(self.number(index))
        array[key] = array.get(key, "") + value if is_appended else value
        self.values[name] = array

    def assign_array(self, name: str, elements: list[str], *, is_appended: bool = False) -> None:
        """Assign elements to an array. `[key]=value` sets a key."""
        array = dict(self.array(name)) if is_appended else {}
        _check_size(name, sum(len(each) + 1 for each in (*array.values(), *elements)))
        after = len(array)
        for element in elements:
            key, bracket, value = element[1:].partition("]=")
            if element.startswith("[") and bracket:
                array[key] = value
            else:
                array[str(after)] = element
                after += 1
        self.values[name] = array

    def number(self, expression: str) -> int:
        """Return the value of an arithmetic expression.

        Raises:
            NotANumber: it has none that can be told.
        """
        return evaluate(expression, lambda name: self.text(name) or "", self.assign)

    def number_text(self, expression: str) -> str:
        """Return the value of an arithmetic expression as text, or the mark of an unknown one."""
        try:
            return str(self.number(expression))
        except NotANumber:
            return unknown(f"$(({expression.strip()}))")

    @contextmanager
    def called_with(self, arguments: list[str]) -> Iterator[None]:
        """Set the positional parameters for a function."""
        plain, self.positional = self.positional, arguments
        try:
            yield
        finally:
            self.positional = plain


def _check_size(name: str, num_letters: int) -> None:
    if num_letters > _MAX_LETTERS:
        raise InvalidInput(f"expected variables of at most {_MAX_LETTERS} letters, got {name} with {num_letters}")


Capture = Callable[[str], str]
"""Returns the output of a script in a substitution."""
