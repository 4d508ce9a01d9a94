"""The charting library of pages and reports, so that neither loads scripts from other hosts.

`plotly.min.js` is `plotly-cartesian.min.js` of the npm package plotly.js-cartesian-dist-min, unchanged. It draws lines,
bars and heat maps, and is a third of the whole library, which the Python package plotly brings in 64 MB. Its licence is
MIT (`plotly.LICENSE.txt`). To replace it: `npm pack plotly.js-cartesian-dist-min`.
"""

from importlib import resources

VERSION = "4.1.1"
"""The version of plotly.js."""


def library() -> bytes:
    """Return the script that defines `Plotly`."""
    return resources.files(__name__).joinpath("plotly.min.js").read_bytes()
