"""Which viewers may see which jobs (S6)."""

from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient

from harness.services import CLUSTER, MODEL, Loop
from harness.watched_job import WatchedJob
from relibra.errors import Unauthenticated
from relibra.status.access import Access
from relibra.store import ALL_JOBS, Role, Store

HIDDEN = (
    "/v1/jobs/job",
    "/v1/jobs/job/steps",
    "/v1/jobs/job/steps/1",
    "/v1/jobs/job/steps/1/plan",
    "/v1/jobs/job/steps/1/plan.npz",
    "/v1/jobs/job/steps/1/cells/0/0",
    "/v1/jobs/job/history",
    "/v1/events?job_id=job",
    "/jobs/job",
    "/jobs/job/steps/1",
    "/jobs/job/steps/1/cells/0/0",
    "/v1/jobs/nobody",
)


@pytest.fixture
def guarded(open_app: Callable[..., TestClient], job: WatchedJob) -> TestClient:
    return open_app(auth="required")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_S6_without_a_token_nothing_is_shown(guarded: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relibra.store.tokens._REREAD_S", 0.0)
    for path in ("/", "/v1/jobs", "/metrics", *HIDDEN):
        answer = guarded.get(path)
        assert answer.status_code == 401
        assert "Basic" in answer.headers["www-authenticate"]
        assert guarded.get(path, headers=bearer("relibra_0_0")).status_code == 401
    assert guarded.get("/healthz").status_code == 200
    assert guarded.get("/readyz").status_code == 200


def test_S6_a_token_shows_its_job_and_no_other(guarded: TestClient, store: Store, run: Loop) -> None:
    other = WatchedJob(store, "other", model=MODEL, cluster=CLUSTER)
    run(other.register())
    _, mine = run(store.create_token("job", Role.VIEWER))
    _, theirs = run(store.create_token("other", Role.TRAINER))
    for path in HIDDEN:
        assert guarded.get(path, headers=bearer(theirs)).status_code == 403, path
    assert guarded.get("/v1/jobs/job/steps/1/plan", headers=bearer(mine)).status_code == 200
    for token, job_id in ((mine, "job"), (theirs, "other")):
        assert [each["job_id"] for each in guarded.get("/v1/jobs", headers=bearer(token)).json()] == [job_id]
        assert f"/jobs/{job_id}" in guarded.get("/", headers=bearer(token)).text
    metrics = guarded.get("/metrics", headers=bearer(theirs)).text
    assert 'job_id="other"' in metrics
    assert 'job_id="job"' not in metrics
    assert "/jobs/job" not in guarded.get("/", headers=bearer(theirs)).text


def test_S6_a_token_of_a_team_shows_its_jobs_and_no_others(guarded: TestClient, store: Store, run: Loop) -> None:
    for job_id in ("red-1", "red-2", "blue-1"):
        run(WatchedJob(store, job_id, model=MODEL, cluster=CLUSTER).register())
    _, team = run(store.create_token("red-*", Role.VIEWER))
    _, other = run(store.create_token("blue-*", Role.TRAINER))
    assert [each["job_id"] for each in guarded.get("/v1/jobs", headers=bearer(team)).json()] == ["red-1", "red-2"]
    assert "blue-1" not in guarded.get("/", headers=bearer(team)).text
    assert guarded.get("/v1/jobs/blue-1", headers=bearer(team)).status_code == 403
    metrics = guarded.get("/metrics", headers=bearer(other)).text
    assert 'job_id="blue-1"' in metrics
    assert "red-" not in metrics


@pytest.mark.long
def test_viewers_and_above_may_look_and_browsers_send_the_token_as_password(
    guarded: TestClient, store: Store, run: Loop
) -> None:
    for role, status in ((Role.ROLLOUT, 403), (Role.VIEWER, 200), (Role.TRAINER, 200), (Role.ADMIN, 200)):
        _, token = run(store.create_token(ALL_JOBS, role))
        assert guarded.get("/v1/jobs/job", headers=bearer(token)).status_code == status
        assert guarded.get("/jobs/job", auth=("anything", token)).status_code == status


def test_a_revoked_token_ends(store: Store, run: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relibra.store.tokens.REMEMBERED_S", 0.0)
    access = Access(store, is_required=True)
    record, token = run(store.create_token("job", Role.VIEWER))
    assert run(access.identify(token)).job_id == "job"
    run(store.revoke_token(record.token_id))
    with pytest.raises(Unauthenticated, match="revoked"):
        run(access.identify(token))
