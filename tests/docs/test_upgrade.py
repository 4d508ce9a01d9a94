"""The numbers on the page about upgrades are those of the code."""

import re
import tomllib

from harness.doc_blocks import REPOSITORY
from relibra.store.keys import SCHEMA, SCHEMA_VERSION
from relibra.v1 import plan_pb2

_PAGE = (REPOSITORY / "docs" / "upgrade.md").read_text(encoding="utf-8")
_NOW = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", _PAGE.partition("## Before")[0], re.M))


def test_the_page_has_todays_numbers() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert _NOW["version of relibra: package, images, chart"] == project["version"]
    assert _NOW[f"schema of Redis (`{SCHEMA}`)"] == str(SCHEMA_VERSION)
    (protocol,) = [now for what, now in _NOW.items() if what.startswith("protocol `relibra.v1`")]
    assert plan_pb2.DESCRIPTOR.package == f"relibra.{protocol}"
