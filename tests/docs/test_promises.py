"""The tests that the page on promises names exist and check the promise."""

import ast
import re

import pytest

from harness.doc_blocks import REPOSITORY

TEXT = (REPOSITORY / "docs" / "promises.md").read_text(encoding="utf-8")
_ELSEWHERE = ("containers", "frameworks", "gpu", "whole_job")
"""Folders that `make test` leaves out or skips."""
PROMISES = re.findall(r"^\| \*\*([SLMN]\d) [\w -]+\*\* \|.*\| ([^|]+) \|$", TEXT, re.M)


def test_the_page_lists_every_promise_that_tests_name():
    names = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests").rglob("test_*.py"))
    assert {promise for promise, _ in PROMISES} == set(re.findall(r"def test_([SLMN]\d)_", names))


def test_every_promise_has_a_test_that_is_not_long():
    promises = set()
    for path in (REPOSITORY / "tests").rglob("test_*.py"):
        statements = ast.parse(path.read_text(encoding="utf-8")).body
        is_long = any(re.match("pytestmark = .*mark.long", ast.unparse(each)) for each in statements)
        if is_long or path.relative_to(REPOSITORY / "tests").parts[0] in _ELSEWHERE:
            continue
        for each in statements:
            if isinstance(each, ast.FunctionDef) and "pytest.mark.long" not in map(ast.unparse, each.decorator_list):
                promises.update(re.findall(r"(?<=_)[SLMN]\d(?=_)", each.name))
    assert promises == {promise for promise, _ in PROMISES}


@pytest.mark.parametrize(("promise", "tested_in"), PROMISES)
def test_a_promise_is_tested_where_the_page_says(promise: str, tested_in: str) -> None:
    files = re.findall(r"`([\w/]+\.py)`", tested_in)
    assert files
    for file in files:
        text = (REPOSITORY / "tests" / file).read_text(encoding="utf-8")
        assert re.search(rf"def test_(?:[SLMN]\d_)*{promise}_", text), file


@pytest.mark.parametrize("file", sorted(set(re.findall(r"`([\w/]+/test_\w+\.py)`", TEXT))))
def test_every_test_that_the_page_names_exists(file: str) -> None:
    assert (REPOSITORY / "tests" / file).is_file()
