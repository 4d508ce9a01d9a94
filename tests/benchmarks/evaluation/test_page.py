import pytest

from benchmarks.evaluation.page import markdown, write_tables


def figures() -> str:
    return markdown(("model", "gain"), [("a", "1.2x")])


def test_a_table_replaces_the_one_of_its_name_and_nothing_else(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n\n<!-- figures -->\nold\n<!-- /figures -->\n\nafter\n")
    write_tables(page, {"figures": figures})
    once = page.read_text()
    assert "| a | 1.2x |" in once
    assert "old" not in once
    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    write_tables(page, {"figures": figures})
    assert page.read_text() == once


def test_a_page_without_a_place_for_the_table_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- figures -->\nno end\n")
    with pytest.raises(SystemExit, match="no place for the table figures"):
        write_tables(page, {"figures": figures})
    assert page.read_text() == "<!-- figures -->\nno end\n"
