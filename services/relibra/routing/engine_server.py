"""`ask_engine`: ask a running inference server what the expert ids in its responses mean.

Responses look alike whether they hold ids of the model's experts or of the slots of EPLB, so the server must tell.
SGLang answers `GET /server_info` (if it is old, only `/get_server_info`) with its settings and its version. vLLM tells
in `GET /v1/models` that it is vLLM, and answers `GET /version`. If it runs with `VLLM_SERVER_DEV_MODE=1`, it also
answers `GET /server_info`, with its settings. This was read in SGLang 0.5.7 to 0.5.23 and in vLLM 0.33.0.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from relibra.errors import InvalidInput, Unauthenticated, Unavailable, Unsupported
from relibra.routing.model_layers import ModelLayers
from relibra.routing.physical_experts import PhysicalExperts, physical_experts, version_numbers

_VLLM_LOGICAL_SINCE = (0, 16, 0)
"""The first release of vLLM that records the choice of the router (vLLM #33013, merged in February 2026)."""
_MAX_BYTES = 64 << 20
"""A limit for answers. The largest holds a map of experts: 100 layers of 1,000 slots have 500 kB."""


def ask_engine(
    url: str,
    layers: ModelLayers,
    physical_to_logical: Any = None,
    *,
    api_key: str | None = None,
    timeout_s: float = 30.0,
) -> PhysicalExperts | None:
    """Return how to read the ids that a server sends; None if they are ids of the model's experts.

    Ask the server that generated the responses, with the settings that it had then. A router in front of several
    servers answers for one of them.

    Args:
        url: the root of the server, as http://host:port.
        layers: the layers of the model.
        physical_to_logical: the map in the file of SGLang's `--init-expert-location`, if the server has one (see
            `PhysicalExperts.of`).
        api_key: the key of the server, if it has one.
        timeout_s: the longest wait for an answer. SGLang answers between two of its batches.

    Raises:
        InvalidInput: `url` is no URL, its server is neither SGLang nor vLLM, or the map is missing or wrong.
        Unauthenticated: the server asks for a key, or for another one.
        Unavailable: no server answers.
        Unsupported: the server sends ids of slots, and no map holds for all of them.
    """
    root = url.rstrip("/")
    if not _is_http(root):
        raise InvalidInput.of("server", expected="http://host:port or https://host:port", got=repr(url))
    config: Any = None
    for place in ("/server_info?config_format=json", "/get_server_info"):
        info = _get(root + place, api_key, timeout_s)
        if "ep_dispatch_algorithm" in info:
            return physical_experts(info, layers, physical_to_logical)
        config = info.get("vllm_config", config)
    owners = _owners(_get(f"{root}/v1/models", api_key, timeout_s))
    if "vllm" in owners:
        _check_vllm(str(_get(f"{root}/version", api_key, timeout_s).get("version")), config)
        return None
    raise InvalidInput.of(
        f"server {root}",
        expected="SGLang, which answers GET /server_info, or vLLM, which GET /v1/models names as owner of its models",
        got=f"models owned by {', '.join(sorted(owners))}" if owners else "neither",
    )


def _owners(models: Mapping[str, Any]) -> set[str]:
    cards = models.get("data")
    return (
        {str(each.get("owned_by")) for each in cards if isinstance(each, Mapping)} if isinstance(cards, list) else set()
    )


def _check_vllm(version: str, config: Any) -> None:
    if version_numbers(version) >= _VLLM_LOGICAL_SINCE:
        return
    parallel = config.get("parallel_config") if isinstance(config, Mapping) else None
    if isinstance(parallel, Mapping) and parallel.get("enable_eplb") is False:
        return
    raise Unsupported(
        f"vLLM {version} sends the slots of experts and not their ids if it runs with --enable-eplb, and tells nobody "
        "which expert is in a slot; use vLLM 0.16 or later, or run it without EPLB and with VLLM_SERVER_DEV_MODE=1, so "
        "that GET /server_info can tell"
    )


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)


def _get(url: str, api_key: str | None, timeout_s: float) -> dict[str, Any]:
    """Return a JSON object; an empty one if the server has none there."""
    request = urllib.request.Request(url)
    if api_key is not None:
        # Not sent to other hosts on a redirect: the key is for this server only.
        request.add_unredirected_header("Authorization", f"Bearer {api_key}")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            body = response.read(_MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            given = "it refused the one given" if api_key is not None else "none was given"
            raise Unauthenticated(f"{url}: the server asks for its API key, and {given}") from error
        if error.code in (404, 405):
            return {}
        raise Unavailable(f"{url}: expected an answer, got HTTP {error.code} {error.reason}") from error
    except (OSError, HTTPException) as error:
        raise Unavailable(f"no server answers at {url}: {getattr(error, 'reason', error)}") from error
    if len(body) > _MAX_BYTES:
        raise InvalidInput.of(url, expected=f"at most {_MAX_BYTES} bytes", got="more")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
