import re
from pathlib import Path

import pytest
import yaml
from starlette.testclient import TestClient

from relibra.status.health import JobState
from relibra.status.runbook import runbook_html, runbook_path

ANCHORS = set(re.findall(r'<h\d id="([^"]*)"', runbook_html()))


@pytest.mark.parametrize("state", JobState)
def test_every_state_that_asks_for_something_has_a_section(state: JobState) -> None:
    path = runbook_path(state)
    if state in (JobState.WELL, JobState.ENDED):
        assert path is None
    else:
        assert path is not None
        page, _, section = path.partition("#")
        assert page == "/runbook"
        assert section in ANCHORS


def test_every_alert_links_to_a_section_of_the_page() -> None:
    alerts = yaml.safe_load((Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yaml").read_text())
    links = [each["annotations"]["runbook_url"] for group in alerts["spec"]["groups"] for each in group["rules"]]
    assert {link.partition("#")[2] for link in links} <= ANCHORS


def test_links_stay_on_the_page_or_lead_out_of_the_documentation() -> None:
    targets = re.findall(r'href="([^"]*)"', runbook_html())
    assert targets
    assert {each[1:] for each in targets if each.startswith("#")} <= ANCHORS
    assert [each for each in targets if not each.startswith(("#", "http"))] == []


def test_S6_the_page_needs_no_token_and_shows_no_job(http: TestClient) -> None:
    answer = http.get("/runbook")
    assert answer.status_code == 200
    assert '<h2 id="relibrajobstalled">' in answer.text
