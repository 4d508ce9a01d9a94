"""Where the rows of a response's choices begin, if the response tells the tokens of all its choices together.

Such are vLLM's responses with several choices and without `return_token_ids`. Their usage counts every prompt once,
and all choices leave out the same number of tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from relibra.errors import InvalidInput
from relibra.routing.sequence_routing import SequenceRouting


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Usage:
    """The tokens of one response with several choices, none of which tells its own."""

    num_choices: int
    prompt_tokens: int
    """The sum over the prompts. A prompt with several choices counts once."""
    completion_tokens: int
    """The sum over the choices."""
    has_one_prompt: bool
    """Whether all choices have the same prompt. If not, completions may have several."""


def place_choices(routings: Sequence[SequenceRouting], usage: Usage) -> list[SequenceRouting]:
    """Return the choices with the first token of their rows, if the usage leaves no doubt of it; else as they are.

    Args:
        routings: all choices of the response.
        usage: the tokens of all of them.

    Raises:
        InvalidInput: the rows of all choices together contradict the usage.
    """
    num_rows = [routing.num_tokens - 1 for routing in routings]
    starts = possible_starts(num_rows, usage)
    if not starts:
        most = usage.num_choices * (usage.prompt_tokens - 1) + usage.completion_tokens
        raise InvalidInput.of(
            f"routed experts of {usage.num_choices} choices",
            expected=f"{most} rows, or fewer by the same number for every choice, of {usage.prompt_tokens} prompt "
            f"tokens and {usage.completion_tokens} others (set return_token_ids in requests to see which is wrong)",
            got=sum(num_rows),
        )
    if len(starts) > 1:
        return list(routings)
    (start,) = starts
    return [
        replace(each, position_T=each.position_T + start, num_tokens=each.num_tokens + start, is_placed=True)
        for each in routings
    ]


def possible_starts(num_rows: Sequence[int], usage: Usage) -> set[int]:
    """Return every token at which the rows of all choices may begin: one for each possible number of prompts."""
    num_choices = usage.num_choices
    choices_per_prompt = [num_choices] if usage.has_one_prompt else range(1, num_choices + 1)
    starts = set()
    for of_prompt in choices_per_prompt:
        num_tokens = of_prompt * usage.prompt_tokens + usage.completion_tokens
        start, rest = divmod(num_tokens - num_choices - sum(num_rows), num_choices)
        if num_choices % of_prompt == 0 and rest == 0 and start >= 0:
            starts.add(start)
    return starts
