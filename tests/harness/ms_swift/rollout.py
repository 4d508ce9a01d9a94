"""The rollout of ms-swift without vLLM: an engine that makes up responses with their routes, and keeps its weights."""

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from harness.tiny_qwen3_moe import random_routes

MAX_RESPONSE = 8


def install() -> None:
    """Have ms-swift's trainers start this engine."""
    from swift.megatron.trainers import rollout_mixin
    from swift.rewards import orms

    rollout_mixin.is_vllm_available = lambda: True
    rollout_mixin.check_vllm_version_ge = lambda version: True
    rollout_mixin.patch_vllm_moe_model_weight_loader = lambda model: None
    rollout_mixin.finish_vllm_weight_reload = lambda *_, **__: None
    rollout_mixin.MegatronRolloutMixin._prepare_vllm_engine = lambda trainer: Engine(
        trainer.template, has_routes=trainer.args.router_replay_mode == "R3"
    )
    orms["few_words"] = FewWords


class FewWords:
    """A reward for short responses."""

    def __init__(self, args: Any = None) -> None: ...

    def __call__(self, completions: Sequence[str], **_: Any) -> list[float]:
        return [-float(len(each)) for each in completions]


class Engine:
    """What ms-swift calls of its vLLM engine.

    Args:
        template: encodes prompts as the trainer does.
        has_routes: whether responses have their routes.
    """

    def __init__(self, template: Any, *, has_routes: bool) -> None:
        self._template, self._has_routes = template, has_routes
        self._rng = np.random.default_rng(dist.get_rank())
        self.received: list[dict[str, torch.Tensor]] = []
        """The weights of each sync."""
        self.inner_model = SimpleNamespace(load_weights=self._load)
        self.inner_model_executor = SimpleNamespace(is_sleeping=False)
        self.engine = SimpleNamespace(
            model_config=None,
            reset_mm_cache=lambda: None,
            reset_prefix_cache=lambda: None,
            reset_encoder_cache=lambda: None,
            sleep=lambda level: None,
            step=self._step,
            has_unfinished_requests=lambda: bool(self._unfinished),
        )
        self._unfinished = list[Any]()

    def infer(self, infer_requests: Sequence[Any], request_config: Any, use_tqdm: bool = False) -> list[Any]:
        """Return a response of some length for each request; all tokens but the last have routes."""
        responses = [self._response(each) for each in infer_requests]
        while self.engine.has_unfinished_requests():
            self.engine.step()
        return responses

    def _step(self) -> list[Any]:
        """Go on as vLLM does: one request is at its end, and another one is not."""
        return [self._unfinished.pop(), SimpleNamespace(finished=False)]

    def _response(self, request: Any) -> Any:
        from swift.infer_engine.protocol import (
            ChatCompletionResponse,
            ChatCompletionResponseChoice,
            ChatMessage,
            RolloutOutput,
            UsageInfo,
        )

        tokenizer = self._template.tokenizer
        prompt = tokenizer(request.messages[-1]["content"], add_special_tokens=False)["input_ids"]
        tokens = self._rng.integers(2, 90, self._rng.integers(3, MAX_RESPONSE + 1)).tolist()
        routed_TLK = random_routes(self._rng, len(prompt) + len(tokens) - 1).astype(np.int16)
        choice = ChatCompletionResponseChoice(
            index=0,
            message=ChatMessage(role="assistant", content=tokenizer.decode(tokens)),
            finish_reason="stop",
            token_ids=tokens,
            routed_experts=routed_TLK if self._has_routes else None,
        )
        sample = SimpleNamespace(token_ids=tokens, routed_experts=choice.routed_experts)
        self._unfinished.append(SimpleNamespace(finished=True, prompt_token_ids=prompt, outputs=[sample]))
        usage = UsageInfo(len(prompt), len(tokens), len(prompt) + len(tokens))
        response = ChatCompletionResponse(model="tiny", choices=[choice], usage=usage)
        return RolloutOutput(response=response)

    def _load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.received.append({name: tensor.detach().clone() for name, tensor in weights})
