from relibra.cli.recipes.arguments import merge, nest, parse, read_options, read_overrides
from relibra.cli.recipes.unknown import mark_unknown


def test_options_are_read_as_argparse_does():
    words = ["run", "--a", "1", "--b-c=2", "--flag", "--list", "x", "y", "--neg", "-3", "--no-bias-gelu", "--a", "4"]
    assert read_options(words) == {
        "b_c": "2",
        "flag": True,
        "list": ["x", "y"],
        "neg": "-3",
        "no_bias_gelu": True,
        "bias_gelu": False,
        "a": "4",
    }


def test_a_word_that_may_stand_for_further_options_is_no_value_of_a_flag():
    more = mark_unknown("EXTRA_ARGS")
    assert read_options(["--offload", more, "--a", "1", more, "--b", more], {"offload"}) == {
        "offload": True,
        "a": "1",
        "b": more,
    }


def test_overrides_are_read_as_hydra_does():
    words = [
        "python",
        "+a.b=1",
        "++a.c=True",
        "a.d=null",
        "~a.e",
        "a.f=[x,1e-6]",
        "url=http://x",
        "a.g='none'",
        "--h=1",
    ]
    found = read_overrides(words)
    assert found == {
        "a.b": 1,
        "a.c": True,
        "a.d": None,
        "a.e": None,
        "a.f": ["x", 1e-6],
        "url": "http://x",
        "a.g": "none",
    }
    assert nest({"a": "x", "a.b": 1, "c.d": 2}) == {"a": {"b": 1}, "c": {"d": 2}}
    assert merge({"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": 3}, "d": [2]}) == {"a": {"b": 3, "c": 2}, "d": [2]}


def test_values_are_those_of_yaml():
    assert [parse(each) for each in ("1", "true", "null", "1e-6", "a: [", "e4m3")] == [
        1,
        True,
        None,
        1e-6,
        "a: [",
        "e4m3",
    ]
