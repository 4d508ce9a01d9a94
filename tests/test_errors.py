from relibra.errors import MAX_SHOWN_CHARS, InvalidInput, one_line


def test_a_short_printable_value_is_shown_as_it_is():
    assert one_line("[T, L, K] …") == "[T, L, K] …"
    assert one_line(3) == "3"


def test_a_long_value_is_cut_and_its_length_is_said():
    text = one_line("x" * 1_000_000)
    assert text == "x" * MAX_SHOWN_CHARS + "… (1000000 characters)"


def test_a_value_cannot_forge_a_line_or_colour_a_terminal():
    assert one_line("job\n2026-11-22 INFO all is well\x1b[31m\u2028") == (
        r"job\n2026-11-22 INFO all is well\x1b[31m\u2028"
    )


def test_S7_refusals_show_values_from_outside_in_this_form():
    error = InvalidInput.of("field", expected="a name", got="line\n" * 1_000)
    assert "\n" not in str(error)
    assert len(str(error)) < 3 * MAX_SHOWN_CHARS
