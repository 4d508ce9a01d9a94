"""The page of settings repeats what the agent's table says."""

import pytest

from docs.settings import PAGE, rewritten
from relibra.agent.settings import SETTINGS

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_says_what_the_table_decides():
    assert rewritten(TEXT) == TEXT, "settings have changed: run python docs/settings.py"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda each: each.name)
def test_every_setting_is_on_the_page(setting):
    assert f"| `{setting.name}` |" in TEXT


def test_a_table_that_is_gone_is_refused():
    with pytest.raises(KeyError, match="gone"):
        rewritten("<!-- gone -->\n<!-- / -->")
