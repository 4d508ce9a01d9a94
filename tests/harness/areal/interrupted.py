"""`python -m harness.areal.interrupted`: AReaL's own client generates a sequence, and the server interrupts it.

The server answers as SGLang does: one request with three tokens and the routes of all tokens so far, one aborted
before its prefill, one with two tokens, and the last one. It prints the routing that the adapter finds, as JSON.
"""

import asyncio
import base64
import json
from typing import Any

import numpy as np
from aiohttp import web

from relibra.integrations.areal import response_routing
from relibra.routing import ModelLayers

LAYERS = ModelLayers(num_experts=8, top_k=2, is_moe=(False, True, True))
PROMPT = [11, 12, 13, 14]
NUM_TOKENS = (3, 0, 2, 4)
"""The tokens that each request generates."""


class Server:
    """An SGLang whose weights change between requests, and with them the routes of all tokens."""

    def __init__(self) -> None:
        self.num_requests = 0
        self.rows_TLK: np.ndarray[Any, Any] = np.zeros(0)
        """The rows of the last request."""

    async def generate(self, request: web.Request) -> web.Response:
        """Answer a request of AReaL's."""
        num_prompt = len((await request.json())["input_ids"])
        num_tokens = NUM_TOKENS[self.num_requests]
        self.num_requests += 1
        is_last = self.num_requests == len(NUM_TOKENS)
        reason = {"type": "stop"} if is_last else {"type": "abort", "message": "Aborted"}
        meta = {"prompt_tokens": num_prompt, "completion_tokens": num_tokens, "finish_reason": reason}
        if not num_tokens:
            reason["message"] = "Abort before prefill"
            return web.json_response({"meta_info": meta | {"output_token_logprobs": []}})
        rng = np.random.default_rng(self.num_requests)
        self.rows_TLK = np.array(
            [
                [rng.choice(LAYERS.num_experts, LAYERS.top_k, replace=False) for _ in range(LAYERS.num_layers)]
                for _ in range(num_prompt + num_tokens - 1)
            ],
            dtype=np.int32,
        )
        self.rows_TLK[:, 0] = 0  # a dense layer
        meta["output_token_logprobs"] = [[-1.0, 20 + index, None] for index in range(num_tokens)]
        meta["routed_experts"] = base64.b64encode(self.rows_TLK.tobytes()).decode()
        return web.json_response({"meta_info": meta})


async def main() -> None:
    """Generate, and print the results."""
    from areal.api import ModelRequest
    from areal.api.cli_args import GenerationHyperparameters, InferenceEngineConfig
    from areal.engine.sglang_remote import SGLangBackend
    from areal.infra import RemoteInfEngine, workflow_context

    server = Server()
    app = web.Application()
    app.router.add_post("/generate", server.generate)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    config = InferenceEngineConfig(backend="sglang:d1", return_routed_experts=True)
    client = RemoteInfEngine(config, SGLangBackend())
    client.addresses = [f"127.0.0.1:{port}"]
    client._workflow_executor = type("NeverPaused", (), {"is_paused": lambda self: False})()
    request = ModelRequest(input_ids=list(PROMPT), gconfig=GenerationHyperparameters(max_new_tokens=64))
    response = await client.agenerate(request)
    await (await workflow_context.get_aiohttp_session()).close()
    await runner.cleanup()
    routing = response_routing(response, LAYERS)
    print(
        json.dumps(
            {
                "num_requests": server.num_requests,
                "num_rows": len(response.routed_experts),
                "num_tokens": routing.num_tokens,
                "num_missing": routing.num_missing,
                "routed": routing.routed_TLK.tolist(),
                "last_request": server.rows_TLK[:, 1:].tolist(),
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
