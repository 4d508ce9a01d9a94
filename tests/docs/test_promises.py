"""The tests that the page on promises names exist and check the promise."""

import re

import pytest

from harness.doc_blocks import REPOSITORY

TEXT = (REPOSITORY / "docs" / "promises.md").read_text(encoding="utf-8")
PROMISES = re.findall(r"^\| \*\*([SL]\d) [\w -]+\*\* \|.*\| ([^|]+) \|$", TEXT, re.M)


def test_the_page_lists_every_promise_that_tests_name():
    names = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests").rglob("test_*.py"))
    assert {promise for promise, _ in PROMISES} == set(re.findall(r"def test_([SL]\d)_", names))


@pytest.mark.parametrize(("promise", "tested_in"), PROMISES)
def test_a_promise_is_tested_where_the_page_says(promise: str, tested_in: str) -> None:
    files = re.findall(r"`([\w/]+\.py)`", tested_in)
    assert files
    for file in files:
        text = (REPOSITORY / "tests" / file).read_text(encoding="utf-8")
        assert re.search(rf"def test_(?:[SL]\d_)*{promise}_", text), file


@pytest.mark.parametrize("file", sorted(set(re.findall(r"`([\w/]+/test_\w+\.py)`", TEXT))))
def test_every_test_that_the_page_names_exists(file: str) -> None:
    assert (REPOSITORY / "tests" / file).is_file()
