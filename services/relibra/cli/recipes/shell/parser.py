"""Parses a bash script into commands. The grammar is that of scripts that people launch trainings with."""

import re
from collections.abc import Callable

from relibra.cli.recipes.shell.syntax import (
    Assignment,
    Calculation,
    Case,
    Chain,
    Command,
    For,
    ForCount,
    Function,
    Group,
    If,
    Pipeline,
    Sequence,
    ShellSyntaxError,
    Simple,
    Substitution,
    Test,
    Text,
    While,
    Word,
)
from relibra.cli.recipes.shell.words import end_of_brackets, line_of, literal, read_quoted, read_word

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[([^]\s]*)\])?(\+?)=")
_FUNCTION = re.compile(r"([A-Za-z_][\w.:-]*)[ \t]*\([ \t]*\)\s*")
_REDIRECTION = re.compile(r"(?:\d*|\{\w+\})(?:<<<|<<-?|<>|>>|>\||>&|<&|>|<(?!\())|&>>?")
_DECLARING = ("declare", "typeset", "local", "export", "readonly")
_ENDS = ("then", "else", "elif", "fi", "do", "done", "esac", "}", ")", ";;", ";&", ";;&")
_TEST_OPERATORS = ("&&", "||", "(", ")", "<", ">")


def parse(text: str) -> Sequence:
    """Return the commands of a script.

    Raises:
        ShellSyntaxError: bash would refuse the script, or the script uses a form that is not read here.
    """
    parser = _Parser(text.replace("\r\n", "\n"))
    found = parser.sequence()
    if not parser.is_at_end():
        raise parser.error("the end of the script")
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._here_documents: dict[int, int] = {}
        """The position of the line break before a here document -> the position after the document."""

    def is_at_end(self) -> bool:
        self._skip_lines()
        return self._at >= len(self._text)

    def error(self, expected: str) -> ShellSyntaxError:
        got = self._text[self._at : self._at + 20].split("\n")[0] or "the end"
        return ShellSyntaxError(f"line {line_of(self._text, self._at)}: expected {expected}, got {got!r}")

    def sequence(self) -> Sequence:
        commands: list[Command] = []
        while True:
            self._skip_lines()
            if self._at >= len(self._text) or self._peek_any(_ENDS):
                return Sequence(tuple(commands))
            commands.append(self._chain())
            self._skip_blanks()
            self._skip_separator()

    def _skip_separator(self) -> None:
        """Skip the `;` or `&` after a command, but not the one that ends a branch of `case`."""
        here = self._text[self._at : self._at + 2]
        if here[:1] in (";", "&") and here not in (";;", ";&", "&&"):
            self._at += 1

    def _chain(self) -> Command:
        first = self._pipeline()
        rest = []
        while (operator := self._take_any(("&&", "||"))) is not None:
            self._skip_lines()
            rest.append((operator, self._pipeline()))
        return Chain(first, tuple(rest)) if rest else first

    def _pipeline(self) -> Command:
        self._skip_blanks()
        is_negated = self._take_word("!")
        commands = [self._command()]
        while True:
            self._skip_blanks()
            if self._text.startswith("||", self._at) or not self._text.startswith("|", self._at):
                break
            self._at += 2 if self._text.startswith("|&", self._at) else 1
            self._skip_lines()
            commands.append(self._command())
        if len(commands) == 1 and not is_negated:
            return commands[0]
        return Pipeline(tuple(commands), is_negated)

    def _command(self) -> Command:
        self._skip_blanks()
        if self._text.startswith("((", self._at):
            end = end_of_brackets(self._text, self._at)
            inner = self._text[self._at + 2 : end - 1]
            self._at = end + 1
            return Calculation(inner)
        if self._text.startswith("(", self._at):
            self._at += 1
            return self._group(")", is_subshell=True)
        if (match := _FUNCTION.match(self._text, self._at)) is not None:
            self._at = match.end()
            return Function(match[1], self._command())
        compounds: tuple[tuple[str, Callable[[], Command]], ...] = (
            ("{", lambda: self._group("}", is_subshell=False)),
            ("if", self._if),
            ("for", self._for),
            ("while", lambda: self._while(is_until=False)),
            ("until", lambda: self._while(is_until=True)),
            ("case", self._case),
            ("function", self._function),
            ("[[", self._test),
        )
        for keyword, read in compounds:
            if self._take_word(keyword):
                return read()
        return self._simple()

    def _group(self, closing: str, *, is_subshell: bool) -> Command:
        body = self.sequence()
        self._expect(closing)
        return Group(body, is_subshell, self._redirections())

    def _if(self) -> Command:
        branches: list[tuple[Sequence | None, Sequence]] = []
        while True:
            condition = self.sequence()
            self._expect("then")
            branches.append((condition, self.sequence()))
            if self._take_word("elif"):
                continue
            if self._take_word("else"):
                branches.append((None, self.sequence()))
            self._expect("fi")
            self._redirections()
            return If(tuple(branches))

    def _for(self) -> Command:
        self._skip_blanks()
        if self._text.startswith("((", self._at):
            end = end_of_brackets(self._text, self._at)
            parts = self._text[self._at + 2 : end - 1].split(";")
            if len(parts) != 3:
                raise self.error("`for ((start; condition; step))`")
            self._at = end + 1
            self._take_any((";",))
            return ForCount(parts[0], parts[1], parts[2], self._do())
        name = literal(self._word()) or ""
        self._skip_lines()
        words: list[Word] = []
        if self._take_word("in"):
            while not self._is_at_end_of_line():
                words.append(self._word())
        self._skip_blanks()
        if self._text.startswith(";", self._at):
            self._at += 1
        body = self._do()
        return For(name, tuple(words), body)

    def _while(self, *, is_until: bool) -> Command:
        condition = self.sequence()
        return While(condition, self._do(), is_until)

    def _do(self) -> Sequence:
        self._expect("do")
        body = self.sequence()
        self._expect("done")
        self._redirections()
        return body

    def _case(self) -> Command:
        subject = self._word()
        self._skip_lines()
        self._expect("in")
        branches: list[tuple[tuple[Word, ...], Sequence]] = []
        while True:
            self._skip_lines()
            if self._take_word("esac"):
                return Case(subject, tuple(branches))
            self._take_any(("(",))
            patterns = [self._word()]
            while self._take_any(("|",)):
                patterns.append(self._word())
            self._expect(")")
            branches.append((tuple(patterns), self.sequence()))
            self._take_any((";;&", ";;", ";&"))

    def _function(self) -> Command:
        name = literal(self._word()) or ""
        self._skip_blanks()
        if self._text.startswith("()", self._at):
            self._at += 2
        self._skip_lines()
        return Function(name, self._command())

    def _test(self) -> Command:
        line = line_of(self._text, self._at)
        parts: list[Word | str] = []
        while True:
            self._skip_lines()
            if self._take_word("]]"):
                self._redirections()
                return Test(line, tuple(parts))
            if self._at >= len(self._text):
                raise self.error("]]")
            # The right side of =~ may contain brackets.
            if parts and isinstance(parts[-1], tuple) and literal(parts[-1]) == "=~":
                parts.append(self._pattern())
            elif (operator := self._take_any(_TEST_OPERATORS)) is not None:
                parts.append(operator)
            else:
                parts.append(self._word())

    def _pattern(self) -> Word:
        found: Word = ()
        while self._at < len(self._text) and self._text[self._at] not in " \t\n":
            word, end = read_word(self._text, self._at)
            if end == self._at:
                word, end = (Text(self._text[end], False),), end + 1
            found, self._at = found + word, end
        return found

    def _simple(self) -> Command:
        line = line_of(self._text, self._at)
        assignments: list[Assignment] = []
        arrays: list[Assignment] = []
        words: list[Word] = []
        here_document: Word | None = None
        while not self._is_at_end_of_line():
            if (redirected := self._redirection()) is not None:
                here_document = redirected or here_document
                continue
            if (match := _ASSIGNMENT.match(self._text, self._at)) is not None:
                is_array = self._text.startswith("(", match.end())
                if not words or (is_array and literal(words[0]) in _DECLARING):
                    (arrays if words else assignments).append(self._assignment(match, is_array=is_array))
                    continue
            words.append(self._word())
        if not (words or assignments or arrays or here_document):
            raise self.error("a command")
        return Simple(line, tuple(words), tuple(assignments), here_document, tuple(arrays))

    def _assignment(self, match: re.Match[str], *, is_array: bool) -> Assignment:
        self._at = match.end()
        name, index, is_appended = match[1], match[2], bool(match[3])
        if not is_array:
            word, self._at = read_word(self._text, self._at)
            return Assignment(name, word, False, is_appended, index)
        self._at += 1
        elements: list[Word] = []
        while True:
            self._skip_lines()
            if self._take_any((")",)):
                return Assignment(name, tuple(elements), True, is_appended)
            elements.append(self._word())

    def _redirections(self) -> Word | None:
        found: Word | None = None
        while (here_document := self._redirection()) is not None:
            found = here_document or found
        return found

    def _redirection(self) -> Word | None:
        """Skip a redirection, and return its here document; return None if there is no redirection."""
        self._skip_blanks()
        match = _REDIRECTION.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        self._skip_blanks()
        if match.group().endswith("<<<"):
            return self._word()
        if "<<" in match.group():
            return self._here_document(is_indented=match.group().endswith("-"))
        self._word()
        return ()

    def _here_document(self, *, is_indented: bool) -> Word:
        word = self._word()
        delimiter = "".join(each.text for each in word if isinstance(each, Text))
        is_literal = any(isinstance(each, Text) and each.is_quoted for each in word)
        line_end = self._text.find("\n", self._at)
        start = at = self._here_documents.get(line_end, line_end + 1)
        while line_end >= 0 and at < len(self._text):
            end = self._text.find("\n", at)
            end = len(self._text) if end < 0 else end
            line = self._text[at:end]
            if (line.lstrip("\t") if is_indented else line) == delimiter:
                self._here_documents[line_end] = end + 1
                body = self._text[start:at]
                return (Text(body, True),) if is_literal else read_quoted(body) or (Text("", True),)
            at = end + 1
        raise self.error(f"a line {delimiter!r} after the here document")

    def _word(self) -> Word:
        self._skip_blanks()
        if self._text.startswith(("<(", ">("), self._at):
            end = end_of_brackets(self._text, self._at + 1)
            script, self._at = self._text[self._at + 2 : end], end + 1
            return (Substitution(script, True),)
        word, end = read_word(self._text, self._at)
        if end == self._at:
            raise self.error("a word")
        self._at = end
        return word

    def _is_at_end_of_line(self) -> bool:
        self._skip_blanks()
        return self._at >= len(self._text) or (
            self._text[self._at] in "\n;|&)" and not self._text.startswith(("&>",), self._at)
        )

    def _skip_blanks(self) -> None:
        text = self._text
        while self._at < len(text):
            if text[self._at] in " \t":
                self._at += 1
            elif text.startswith("\\\n", self._at):
                self._at += 2
            elif text[self._at] == "#" and (self._at == 0 or text[self._at - 1] in " \t\n;()&|"):
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
            else:
                return

    def _skip_lines(self) -> None:
        self._skip_blanks()
        while self._at < len(self._text) and self._text[self._at] == "\n":
            self._at = self._here_documents.get(self._at, self._at + 1)
            self._skip_blanks()

    def _peek_any(self, words: tuple[str, ...]) -> bool:
        return any(self._is_word(each) for each in words)

    def _is_word(self, word: str) -> bool:
        if not self._text.startswith(word, self._at):
            return False
        return not (word[0].isalpha() or word in ("{", "}", "!", "[[", "]]")) or (
            self._text[self._at + len(word) : self._at + len(word) + 1] in ("", *" \t\n;&|()<>")
        )

    def _take_word(self, word: str) -> bool:
        self._skip_blanks()
        if not self._is_word(word):
            return False
        self._at += len(word)
        return True

    def _take_any(self, operators: tuple[str, ...]) -> str | None:
        self._skip_blanks()
        for each in operators:
            if self._text.startswith(each, self._at):
                self._at += len(each)
                return each
        return None

    def _expect(self, word: str) -> None:
        self._skip_lines()
        if not self._take_word(word):
            raise self.error(f"{word!r}")
