"""A step of verl in which a server aborts all its requests, and verl's own client sends the rest of each again.

This is what verl does before it hands new weights to a server that generates. (`abort_request` of verl 0.9.1, for one
request, finds none in vLLM 0.29, which puts a random end to their names.)
"""

import asyncio
from typing import Any

from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient

_MAX_TOKENS = 48
"""The most tokens of the sample that begins the abort, so that it still generates then; verl cuts it afterwards."""


class _Requests(LLMServerClient):  # type: ignore[misc]
    """verl's client, which notes what became of each request."""

    parts: list[tuple[str, int]]
    """Why each request ended, and how many tokens it brought."""

    async def generate(self, request_id: str, **of_request: Any) -> Any:
        output = await super().generate(request_id, **of_request)
        self.parts.append((output.stop_reason, len(output.token_ids)))
        return output


class ResumingClient(FullyAsyncLLMServerClient, _Requests):  # type: ignore[misc]
    """verl's client of its asynchronous trainers, for one sample."""

    def __init__(self, client: LLMServerClient) -> None:
        super().__init__(client.config, client._load_balancer)
        self.parts = []


class AbortingClient(ResumingClient):
    """The same, for a sample whose server aborts all requests once it has generated a token of the sample."""

    async def generate(self, request_id: str, **of_request: Any) -> Any:
        of_request["sampling_params"] |= {"max_tokens": _MAX_TOKENS, "ignore_eos": True}
        output, _ = await asyncio.gather(
            super().generate(request_id, **of_request), self._abort(request_id, of_request)
        )
        return output

    async def _abort(self, request_id: str, of_request: dict[str, Any]) -> None:
        name, server = await self._acquire_server(request_id)
        # A request that came later has its first token no earlier.
        of_one_token = of_request | {"sampling_params": {"max_tokens": 1}}
        await LLMServerClient.generate(self, request_id, **of_one_token)
        await server.abort_all_requests.remote()
        await server.resume_generation.remote()
        self._release_server(name, request_id)
