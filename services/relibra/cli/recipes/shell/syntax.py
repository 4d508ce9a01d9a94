"""The parts of a bash script."""

from dataclasses import dataclass, field

from relibra.errors import InvalidInput


class ShellSyntaxError(InvalidInput):
    """A script that bash would not parse, or that uses something that is not read here."""


@dataclass(frozen=True, slots=True)
class Text:
    """Characters that stand for themselves."""

    text: str
    is_quoted: bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """`$name`, or `${name...}`."""

    name: str
    is_quoted: bool
    operator: str = ""
    """`:-`, `#`, `length`, ...; empty for the plain value."""
    argument: str = ""
    """The text after the operator, not yet expanded."""
    index: str | None = None
    """The text in brackets, not yet expanded."""


@dataclass(frozen=True, slots=True)
class Substitution:
    """`$(script)`, or backquotes."""

    script: str
    is_quoted: bool


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`$((expression))`."""

    expression: str
    is_quoted: bool


Segment = Text | Parameter | Substitution | Arithmetic
Word = tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """`name=value`, `name+=value`, `name[index]=value`, or one of an array."""

    name: str
    value: Word | tuple[Word, ...]
    is_array: bool
    is_appended: bool
    index: str | None = None


@dataclass(frozen=True, slots=True)
class Simple:
    """A command with its words."""

    line: int
    words: tuple[Word, ...]
    assignments: tuple[Assignment, ...] = ()
    here_document: Word | None = None
    arrays: tuple[Assignment, ...] = ()
    """Arrays that `declare` and its kin assign."""


@dataclass(frozen=True, slots=True)
class Test:
    """`[[ ... ]]`: words, and operators as strings."""

    line: int
    parts: tuple[Word | str, ...]


@dataclass(frozen=True, slots=True)
class Calculation:
    """`(( ... ))`."""

    expression: str


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands whose output feeds the next one."""

    commands: "tuple[Command, ...]"
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """Pipelines joined by `&&` and `||`."""

    first: "Command"
    rest: "tuple[tuple[str, Command], ...]"


@dataclass(frozen=True, slots=True)
class Sequence:
    """Commands one after the other."""

    commands: "tuple[Command, ...]" = ()


@dataclass(frozen=True, slots=True)
class Group:
    """`{ ... }`, or `( ... )`, whose assignments end with it."""

    body: Sequence
    is_subshell: bool
    here_document: Word | None = None


@dataclass(frozen=True, slots=True)
class If:
    """Conditions with their bodies; the last condition may be None, for `else`."""

    branches: tuple[tuple[Sequence | None, Sequence], ...]


@dataclass(frozen=True, slots=True)
class For:
    """`for name in words`."""

    name: str
    words: tuple[Word, ...]
    body: Sequence


@dataclass(frozen=True, slots=True)
class ForCount:
    """`for ((start; condition; step))`."""

    start: str
    condition: str
    step: str
    body: Sequence


@dataclass(frozen=True, slots=True)
class While:
    """`while` or `until`."""

    condition: Sequence
    body: Sequence
    is_until: bool


@dataclass(frozen=True, slots=True)
class Case:
    """`case word in pattern) ... ;; esac`."""

    subject: Word
    branches: tuple[tuple[tuple[Word, ...], Sequence], ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Function:
    """The definition of a function."""

    name: str
    body: "Command"


Command = (
    Simple | Test | Calculation | Pipeline | Chain | Sequence | Group | If | For | ForCount | While | Case | Function
)
