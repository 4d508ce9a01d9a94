"""How fast a job may send: a flood is slowed down, not refused (S6, S7)."""

_BURST_S = 1.0
_MAX_CLOCKS = 4096
"""Of the past; names of jobs are as many as callers think of."""


class Pace:
    """The generic cell rate algorithm, one virtual clock a job: what a job sends moves its clock on.

    https://en.wikipedia.org/wiki/Generic_cell_rate_algorithm
    """

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._spent_until: dict[str, float] = {}

    def delay_s(self, job_id: str, size_bytes: int, now: float) -> float:
        """Account for what a job has sent; return how long that must wait before it is taken in.

        Args:
            job_id: the job, whether there is such a job or not.
            size_bytes: what it sent.
            now: monotonic time in seconds.
        """
        if len(self._spent_until) >= _MAX_CLOCKS:
            # A clock in the past is as good as none.
            self._spent_until = {each: until for each, until in self._spent_until.items() if until > now}
        spent_until = max(self._spent_until.get(job_id, now), now) + size_bytes / self._bytes_per_s
        self._spent_until[job_id] = spent_until
        return max(0.0, spent_until - now - _BURST_S)
