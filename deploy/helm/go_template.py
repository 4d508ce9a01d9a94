"""The part of Helm's templates that the chart uses, so that every machine with Python can render and test it.

Actions: `if`, `else if`, `else`, `with`, `range`, `define`, `end`, comments, and pipelines of fields, strings,
variables and the functions below. Anything else is refused by name. Helm itself is the reference, and a test compares
the two.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[()|]|:=|,|[^\s()|,"]+)')
_Body = list["str | _Block"]


class _Block:
    """An action with the bodies that it decides about."""

    def __init__(self, action: str) -> None:
        self.word, _, self.rest = action.partition(" ")
        self.branches: list[tuple[str, _Body]] = [(self.rest, [])]


class Templates:
    """The templates of a chart, and what they are rendered with."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        """Take `root`, which templates see as `.` at their top: `Values`, `Chart`, `Release`, `Files`."""
        self._root = root
        self._defined: dict[str, _Body] = {}
        self._functions: dict[str, Callable[..., Any]] = {
            "and": lambda *each: next((one for one in each if not one), each[-1]),
            "or": lambda *each: next((one for one in each if one), each[-1]),
            "not": lambda one: not one,
            "default": lambda other, one: one or other,
            "quote": lambda one: json.dumps(_text(one)),
            "replace": lambda old, new, text: text.replace(old, new),
            "trim": str.strip,
            "nindent": lambda width, text: "\n" + "\n".join(" " * width + line for line in text.split("\n")),
            "toYaml": lambda one: yaml.safe_dump(one, default_flow_style=False, width=1000).removesuffix("\n"),
            "fromYaml": yaml.safe_load,
            "include": lambda name, dot: self._run(self._defined[name], dot, {}),
        }

    def render(self, text: str) -> str:
        """Return a rendered template; keep the parts that it defines for later templates.

        Raises:
            ValueError: the text has an action or a function that this module does not know.
            KeyError: it names a value that is not there.
        """
        # Dashes take the white space beside an action with them.
        text = re.sub(r"\s*\{\{-(?=\s)", "{{", text)
        text = re.sub(r"(?<=\s)-\}\}\s*", "}}", text)
        parts = re.split(r"\{\{\s*(.*?)\s*\}\}", text, flags=re.S)
        body, closed_by = self._parse(iter(enumerate(parts)))
        if closed_by:
            raise ValueError(f"{closed_by!r} closes nothing")
        return self._run(body, self._root, {})

    def _parse(self, parts: Iterator[tuple[int, str]]) -> tuple[_Body, str]:
        """Return what stands before the `else` or `end` of this level, and that action; empty at the text's end."""
        body: _Body = []
        for index, part in parts:
            if index % 2 == 0:
                body.append(part)
            elif part.startswith("/*"):
                continue
            elif part == "end" or part.startswith("else"):
                return body, part
            else:
                body.append(self._block(part, parts))
        return body, ""

    def _block(self, action: str, parts: Iterator[tuple[int, str]]) -> _Block:
        block = _Block(action)
        if block.word not in ("if", "with", "range", "define"):
            block.word, block.rest = "", action
            return block
        inner, closed_by = self._parse(parts)
        block.branches = [(block.rest, inner)]
        while closed_by != "end":
            if not closed_by:
                raise ValueError(f"{action!r} has no end")
            condition = closed_by.removeprefix("else").strip().removeprefix("if ")
            inner, closed_by = self._parse(parts)
            block.branches.append((condition, inner))
        if block.word == "define":
            self._defined[json.loads(block.rest)] = inner
        return block

    def _run(self, body: _Body, dot: Any, variables: dict[str, Any]) -> str:
        return "".join(each if isinstance(each, str) else self._act(each, dot, variables) for each in body)

    def _act(self, block: _Block, dot: Any, variables: dict[str, Any]) -> str:
        match block.word:
            case "":
                return _text(self._value(block.rest, dot, variables))
            case "define":
                return ""
            case "range":
                return self._range(block, dot, variables)
        for condition, body in block.branches:
            value = self._value(condition, dot, variables) if condition else True
            if value:
                return self._run(body, value if block.word == "with" and condition else dot, variables)
        return ""

    def _range(self, block: _Block, dot: Any, variables: dict[str, Any]) -> str:
        names, _, over = block.rest.rpartition(":=")
        items = self._value(over, dot, variables)
        if not names:
            return "".join(self._run(block.branches[0][1], each, variables) for each in items)
        key, value = (name.strip() for name in names.split(","))
        return "".join(
            self._run(block.branches[0][1], items[each], variables | {key: each, value: items[each]})
            for each in sorted(items)
        )

    def _value(self, expression: str, dot: Any, variables: dict[str, Any]) -> Any:
        return self._pipeline(_TOKEN.findall(expression), dot, variables)

    def _pipeline(self, tokens: list[str], dot: Any, variables: dict[str, Any], *, is_inner: bool = False) -> Any:
        piped: list[Any] = []
        while True:
            function: Callable[..., Any] | None = None
            arguments: list[Any] = []
            while tokens and tokens[0] not in "|)":
                token = tokens.pop(0)
                if token == "(":
                    value = self._pipeline(tokens, dot, variables, is_inner=True)
                elif re.match(r'["0-9]', token):
                    value = json.loads(token)
                elif token[0] in ".$":
                    value = self._field(token, dot, variables)
                elif token in self._functions and function is None and not arguments:
                    function = self._functions[token]
                    continue
                else:
                    raise ValueError(f"unknown here: {token}")
                if callable(value):
                    function = value
                else:
                    arguments.append(value)
            if function is None and len(arguments) + len(piped) != 1:
                raise ValueError("a function was expected")
            piped = [function(*arguments, *piped) if function else arguments[0]]
            end = tokens.pop(0) if tokens else ""
            if end != "|":
                if (end == ")") != is_inner:
                    raise ValueError("parentheses do not match")
                return piped[0]

    def _field(self, token: str, dot: Any, variables: dict[str, Any]) -> Any:
        start, *names = token.split(".")
        value = dot if not start else self._root if start == "$" else variables[start]
        for name in filter(None, names):
            value = value[name]
        return value


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
