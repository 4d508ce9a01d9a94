"""The charting library is the one that its package says, with its licence beside it."""

import re
from pathlib import Path

from relibra import charting


def test_the_library_is_of_the_version_that_the_package_names_and_has_its_licence() -> None:
    head = charting.library()[:400].decode()
    assert re.search(r"plotly\.js \(cartesian - minified\) v([\d.]+)", head)[1] == charting.VERSION
    assert "MIT License" in Path(charting.__file__).with_name("plotly.LICENSE.txt").read_text()


def test_it_loads_nothing_from_other_hosts_for_the_charts_that_relibra_draws() -> None:
    types = {name.decode() for name in re.findall(rb'moduleType:"trace",name:"(\w+)"', charting.library())}
    assert {"scatter", "bar", "heatmap"} <= types
    assert not {"scattermapbox", "scattermap", "choropleth", "scattergeo"} & types
