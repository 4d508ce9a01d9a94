"""The variables of a script that is being read."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from relibra.errors import InvalidInput

ALL = ("@", "*")
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
    folder: Path = field(default_factory=Path)
    """The folder that `cd` has gone to."""

    def copied(self) -> "Variables":
        """Return variables for a subshell."""
        return Variables(self.script, dict(self.values), list(self.positional), self.folder)

    def text(self, name: str) -> str | None:
        """Return the value of a variable or positional parameter, or None if it is not set."""
        if name.isdigit() and name != "0":
            return self.positional[int(name) - 1] if int(name) <= len(self.positional) else None
        script = str(self.script)
        special = {
            "0": script,
            "BASH_SOURCE": script,
            "#": str(len(self.positional)),
            "?": "0",
            "PWD": str(self.folder),
        }
        if name in special:
            return special[name]
        value = self.values.get(name)
        return next(iter(value.values()), None) if isinstance(value, dict) else value

    def array(self, name: str) -> Array:
        """Return the elements of a variable; a text has one, and a variable that is not set has none."""
        value = str(self.script) if name == "BASH_SOURCE" else self.values.get(name)
        return value if isinstance(value, dict) else {} if value is None else {"0": value}

    def assign(self, name: str, value: str, *, is_appended: bool = False, key: str | None = None) -> None:
        """Assign a text to a variable or to an element of an array."""
        if key is None and not isinstance(self.values.get(name), dict):
            value = (self.text(name) or "") + value if is_appended else value
            _check_size(name, len(value))
            self.values[name] = value
            return
        array = self.array(name)
        key = key or "0"
        self.assign_array(name, {**array, key: array.get(key, "") + value if is_appended else value})

    def assign_array(self, name: str, array: Array) -> None:
        """Assign an array."""
        _check_size(name, sum(len(each) + 1 for each in array.values()))
        self.values[name] = array

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
