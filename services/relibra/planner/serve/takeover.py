"""Whether silence proves that a launch is dead: while Redis was away, no launch could be heard."""

NEVER_S = 1e9
"""A silence that no attempt reaches."""


def takeover_silence_s(attempt_silence_s: float, answered_for_s: float) -> float:
    """Return how long an attempt must be silent before another launch may take its place, in seconds.

    After an outage every attempt looks silent. A live one is heard again within `attempt_silence_s`, so until then
    nobody takes a place.

    Args:
        attempt_silence_s: the setting.
        answered_for_s: how long Redis has answered this planner without a break; 0 while it does not answer.
    """
    return attempt_silence_s if answered_for_s >= attempt_silence_s else NEVER_S
