import json
from dataclasses import asdict, dataclass
from enum import StrEnum

import pytest

from relibra.store.json_codec import as_row, restore


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Part:
    colour: Colour
    digest: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Whole:
    part: Part | None
    parts: tuple[Part, ...]
    pair: tuple[int, Colour]
    counts: dict[Colour, int]
    time_s: float


PART = Part(colour=Colour.RED, digest=b"\x01\xff")
WHOLE = Whole(
    part=PART,
    parts=(PART, Part(colour=Colour.BLUE)),
    pair=(3, Colour.BLUE),
    counts={Colour.RED: 2},
    time_s=1_763_800_000.1251,
)


@pytest.mark.parametrize("whole", [WHOLE, Whole(part=None, parts=(), pair=(0, Colour.RED), counts={}, time_s=0.0)])
def test_a_record_survives_its_row_with_its_types(whole: Whole) -> None:
    restored = restore(Whole, json.loads(json.dumps(as_row(whole))))
    assert restored == whole
    assert isinstance(restored.pair[1], Colour)
    assert all(isinstance(each, Colour) for each in restored.counts)


def test_a_record_is_restored_from_its_names_too() -> None:
    known = asdict(WHOLE) | {"part": {"colour": "red"}, "parts": []}
    restored = restore(Whole, json.loads(json.dumps(known)))
    assert (restored.part, restored.parts, restored.pair) == (Part(colour=Colour.RED), (), WHOLE.pair)


def test_numbers_of_a_row_are_rounded() -> None:
    assert as_row((1.012345, 1_763_800_000.12345, 7)) == [1.0123, 1_763_800_000.1235, 7]


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        restore(Part, ["red"])
