"""ROLL's rollout workers report each response where it finishes, while others are generated.

With replay (R3), SGLang returns the routes of a response with its tokens. ROLL's other engine returns none.
"""

from collections.abc import Mapping
from typing import Any

from relibra.plugins.rollout_stream import stream

_ABORTED = "abort"


def report_responses(payload: Mapping[str, Any], response: Mapping[str, Any]) -> None:
    """Report the responses to a request, if they have routes.

    Args:
        payload: the request. A prompt with images has tokens that it does not show, so training ranks report for it.
        response: what a strategy of ROLL returned for it.
    """
    routed, prompt = response.get("routed_experts"), payload.get("input_ids")
    if routed is None or prompt is None:
        return
    for tokens, reason, of_tokens in zip(response["output_token_ids"], response["finish_reasons"], routed, strict=True):
        if reason != _ABORTED:
            stream().report([*prompt, *tokens], of_tokens)
