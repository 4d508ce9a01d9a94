import urllib.error
import urllib.request

import pytest

from relibra.errors import Unavailable
from relibra.planner.metrics import Metrics


def _status(url: str) -> int:
    try:
        return int(urllib.request.urlopen(url, timeout=5).status)
    except urllib.error.HTTPError as error:
        return error.code


def test_readiness_follows_redis_beside_the_metrics():
    metrics = Metrics()
    port = metrics.serve("127.0.0.1", 0)
    assert _status(f"http://127.0.0.1:{port}/readyz") == 503
    metrics.tell_ready("")
    assert _status(f"http://127.0.0.1:{port}/readyz") == 200
    shown = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
    assert "relibra_planner_ready 1.0" in shown


def test_a_port_in_use_is_refused():
    port = Metrics().serve("127.0.0.1", 0)
    with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1:{port} for metrics"):
        Metrics().serve("127.0.0.1", port)
