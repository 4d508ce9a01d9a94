from relibra.cli.recipes.merged import read_yaml, resolve


def test_defaults_are_merged_below_the_file_and_among_themselves(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "a.yaml").write_text("x: {one: 1, two: 2}\nlist: [1, 2]\nlr: 1e-6\n")
    (tmp_path / "b.yaml").write_text("defaults: base/a.yaml\nx: {two: 3}\n")
    (tmp_path / "c.yaml").write_text("defaults: [b, other.yaml]\nx:\n  three: ${x.two}\nlist: [3]\n")
    warnings: list[str] = []
    found = read_yaml(tmp_path / "c.yaml", warnings, {})
    assert found == {"x": {"one": 1, "two": 3, "three": 3}, "list": [3], "lr": 1e-6}
    assert len(warnings) == 1


def test_self_says_where_the_file_itself_stands(tmp_path):
    (tmp_path / "a.yaml").write_text("x: 1\n")
    (tmp_path / "b.yaml").write_text("defaults: [_self_, a]\nx: 2\ny: 2\n")
    assert read_yaml(tmp_path / "b.yaml", [], {}) == {"x": 1, "y": 2}


def test_a_default_that_is_shipped_stands_in_for_one_that_is_not_there(tmp_path):
    (tmp_path / "a.yaml").write_text("defaults: ../../known.yaml\nx: {y: 1}\n")
    warnings: list[str] = []
    assert read_yaml(tmp_path / "a.yaml", warnings, {"known.yaml": {"x": {"z": 2}}}) == {"x": {"z": 2, "y": 1}}
    assert warnings == []


def test_references_are_resolved_and_other_resolvers_stay():
    config = {"a": {"b": 4}, "c": "${a.b}", "d": "x-${a.b}", "e": "${oc.env:HOME}", "f": "${f}", "g": "${none.at.all}"}
    expected = {"a": {"b": 4}, "c": 4, "d": "x-4", "e": "${oc.env:HOME}", "f": "${f}", "g": "${none.at.all}"}
    assert resolve(config) == expected
