"""Counts of finished sequences: each kept once.

In Redis the counts of a sequence are sealed (`seal`): one byte with the size of an element, then the elements in
little-endian order, in the narrowest unsigned dtype that holds them. 48 layers x 128 experts take 6 KiB for a sequence
of up to some 500 tokens and 12 KiB up to 200 000; the expert ids take 384 B per token. Deflating was measured to save
15 to 40 % of that for 30 to 170 us per sequence, a quarter of the time that ingest may spend on one. Steps expire, so
memory is bounded without.

L layers, E experts, S sequences.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from relibra.errors import Conflict, LimitExceeded, NotFound, RelibraError, UnknownJob
from relibra.planning.plan import Level
from relibra.store.attempts import Attempts
from relibra.store.keys import AHEAD_KEYS, AttemptId, AttemptKeys, JobKeys
from relibra.store.records import DEFAULT_LIMITS, JobRecord, SequenceCounts, StoreLimits
from relibra.store.rollbacks import way_back
from relibra.store.seal import seal, unseal

_SEQUENCES_PER_READ = 256
_SEQUENCES_PER_LOOK = 2048
_AHEAD = b"|"
"""Ends the policy versions of a sequence of no step yet; its sealed counts follow."""


class Sequences(Attempts):
    """The counts that rollout workers reported."""

    async def put_counts(
        self, sequences: Sequence[SequenceCounts], limits: StoreLimits = DEFAULT_LIMITS
    ) -> list[RelibraError | None]:
        """Keep the counts of many sequences in one round trip; when this returns they are in Redis.

        Counts of one sequence are equal if their bytes are, so they must come in their narrowest dtype. Sequences
        without a step are kept until newer ones need their room, the newest counts of each name, see `claim`.

        Returns:
            One entry per sequence: None if it is kept, now or before; `Conflict` if other counts are kept, the step has
            expired or has a schedule; `StaleEpoch` if the attempt is over;
            `LimitExceeded`; `UnknownJob`.
        """
        steps: dict[tuple[str, int, int | None], list[int]] = {}
        for index, sequence in enumerate(sequences):
            steps.setdefault((sequence.job_id, sequence.epoch, sequence.step), []).append(index)
        outcomes: list[RelibraError | None] = [None] * len(sequences)
        # A batch nearly always belongs to one step of one job; then this loop makes one call.
        for (job_id, epoch, step), indices in steps.items():
            keys = JobKeys(job_id).attempt(epoch)
            of_step = [sequences[index] for index in indices]
            if step is None:
                words = await self._put_ahead(keys, of_step, limits)
            else:
                values = [
                    (sequence.sequence_id, _to_bytes(sequence.counts_LE), sequence.policies) for sequence in of_step
                ]
                words = await self._put(keys, step, values, limits)
            for index, word in zip(indices, words, strict=True):
                outcomes[index] = _refusal(word, sequences[index], limits)
            if b"stale_epoch" in words:
                stale = await self.over(job_id, epoch)
                for index in indices:
                    outcomes[index] = stale
        return outcomes

    async def _put(
        self, keys: AttemptKeys, step: int, values: Iterable[tuple[str, bytes, str | bytes]], limits: StoreLimits
    ) -> list[bytes]:
        """Keep sequences of a step: id, sealed counts and policy versions each. Return a word for each."""
        words: bytes = await self._script(
            "put_sequences",
            [
                keys.job.of("job"),
                keys.step(step, "counts"),
                keys.step(step, "schedule"),
                *map(keys.of, ("steps", "open", "floor", "sizes")),
                keys.step(step, "policies"),
            ],
            [
                f"{keys.epoch:016x}",
                step,
                limits.max_step_size_bytes,
                limits.max_open_steps,
                Level.HISTORY,
                limits.max_sequences,
                *chain.from_iterable(values),
            ],
        )
        return words.split()

    async def _put_ahead(
        self, keys: AttemptKeys, sequences: Sequence[SequenceCounts], limits: StoreLimits
    ) -> list[bytes]:
        """Keep sequences of no step yet. Return a word for each."""
        values = (
            (sequence.sequence_id, sequence.policies.encode() + _AHEAD + _to_bytes(sequence.counts_LE))
            for sequence in sequences
        )
        words: bytes = await self._script(
            "put_ahead",
            [keys.job.of("job"), *map(keys.job.of, AHEAD_KEYS)],
            [f"{keys.epoch:016x}", limits.max_step_size_bytes, limits.max_sequences, *chain.from_iterable(values)],
        )
        return words.split()

    async def reported_sequences(self, attempt: AttemptId, step: int) -> set[str]:
        """Return the ids of the sequences whose counts are kept."""
        return {
            sequence_id.decode()
            for sequence_id in await self._redis.hkeys(AttemptKeys.of_attempt(attempt).step(step, "counts"))
        }

    async def claim(
        self,
        attempt: AttemptId,
        step: int,
        sequence_ids: Sequence[str],
        limits: StoreLimits = DEFAULT_LIMITS,
        *,
        all_or_none: bool = False,
    ) -> list[str]:
        """Let those of `sequence_ids` that were reported without a step belong to a step; return what was not reported.

        With `all_or_none`, they stay without a step if some were not reported: a step that has sequences has begun.
        What the step has already stays. Sequences that the step may not take count as not reported: whoever reports
        them hears why. A sequence may belong to several steps, in each with the counts that it had when it was claimed.
        """
        keys = AttemptKeys.of_attempt(attempt)
        missing = await self._missing_in(keys.step(step, "counts"), sequence_ids)
        if not missing or await self._redis.hget(keys.job.of("ahead_note"), "epoch") != f"{keys.epoch:016x}".encode():
            return missing
        if all_or_none and (lost := await self._missing_in(keys.job.of("ahead"), missing)):
            return lost
        unreported: list[str] = []
        for start in range(0, len(missing), _SEQUENCES_PER_READ):
            wanted = missing[start : start + _SEQUENCES_PER_READ]
            texts = await self._redis.hmget(keys.job.of("ahead"), wanted)
            kept = {name: text.partition(_AHEAD) for name, text in zip(wanted, texts, strict=True) if text is not None}
            values = ((name, counts, policies) for name, (policies, _, counts) in kept.items())
            words = dict(zip(kept, await self._put(keys, step, values, limits), strict=True)) if kept else {}
            unreported += [name for name in wanted if words.get(name) not in (b"kept", b"same", b"other")]
        return unreported

    async def _missing_in(self, key: str, sequence_ids: Sequence[str]) -> list[str]:
        missing: list[str] = []
        for start in range(0, len(sequence_ids), _SEQUENCES_PER_LOOK):
            wanted = list(sequence_ids[start : start + _SEQUENCES_PER_LOOK])
            missing += [wanted[place] for place in await self._script("missing_sequences", [key], wanted)]
        return missing

    async def get_counts(self, job: JobRecord, step: int, sequence_ids: Sequence[str]) -> NDArray[np.unsignedinteger]:
        """Return the counts of sequences in the order of `sequence_ids`, `[S, L, E]`, in a dtype that holds them all.

        Raises:
            NotFound: a sequence was never reported; the text names the first one.
            Corrupt: the counts of a sequence are not those that were stored; the text names the first one.
        """
        shape = (job.model.num_layers, job.model.num_experts)
        # Counts are most of what a solve holds, and few are too large for one byte or two.
        counts_SLE: NDArray[np.unsignedinteger] = np.empty((len(sequence_ids), *shape), dtype=np.uint8)
        key = AttemptKeys.of_attempt(job).step(step, "counts")
        for start in range(0, len(sequence_ids), _SEQUENCES_PER_READ):
            wanted = sequence_ids[start : start + _SEQUENCES_PER_READ]
            for index, data in enumerate(await self._redis.hmget(key, wanted)):
                if data is None:
                    raise NotFound(f"sequence {wanted[index]!r} of step {step} was never reported")
                counts_LE = _from_bytes(data, shape, wanted[index], job, step)
                if counts_LE.itemsize > counts_SLE.itemsize:
                    counts_SLE = counts_SLE.astype(counts_LE.dtype.newbyteorder("="))
                counts_SLE[start + index] = counts_LE
        return counts_SLE


def _to_bytes(counts_LE: NDArray[np.unsignedinteger]) -> bytes:
    little_LE = np.ascontiguousarray(counts_LE, dtype=counts_LE.dtype.newbyteorder("<"))
    return seal(bytes((little_LE.itemsize,)) + little_LE.tobytes())


def _from_bytes(
    sealed: bytes, shape: tuple[int, int], sequence_id: str, job: AttemptId, step: int
) -> NDArray[np.unsignedinteger]:
    data = unseal(sealed, f"the counts of sequence {sequence_id!r} of step {step} of job {job.job_id!r}")
    return np.frombuffer(data, dtype=f"<u{data[0]}", offset=1).reshape(shape)


def _refusal(word: bytes, sequence: SequenceCounts, limits: StoreLimits) -> RelibraError | None:
    if word in (b"kept", b"same", b"stale_epoch"):
        return None
    name, job_id, step = f"sequence {sequence.sequence_id!r}", sequence.job_id, sequence.step
    what = "what is reported without a step" if step is None else f"what is reported of step {step}"
    back = "" if step is None else way_back(job_id, step)
    return {
        b"other": Conflict(
            f"{name} of step {step} has other counts already in this attempt; the first counts stay; {back}"
        ),
        b"late": Conflict(
            f"{name} is late: step {step} has its schedule; report it for the step that trains on it; {back}"
        ),
        b"expired": Conflict(f"{name} is late: step {step} of job {job_id!r} has expired; {back}"),
        b"unknown": UnknownJob(f"job {job_id!r} is not registered; register it first"),
        b"large": LimitExceeded(
            f"{name} does not fit: {what} may take {limits.max_step_size_bytes} bytes in Redis (max_step_size_bytes)",
            limit="max_step_size_bytes",
        ),
        b"many": LimitExceeded(
            f"{name} does not fit: step {step} may have {limits.max_sequences} sequences (max_sequences)",
            limit="max_sequences",
        ),
        b"busy": LimitExceeded(
            f"{name} of step {step} is refused: {limits.max_open_steps} steps of job {job_id!r} have sequences and no "
            "plan (max_open_steps); submit their schedules first",
            limit="max_open_steps",
        ),
    }[word]
