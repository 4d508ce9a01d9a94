"""The diagrams of the pages are well-formed Mermaid, with a title and a description for screen readers."""

import re

import pytest

from harness.doc_blocks import ALL_BLOCKS, Block

DIAGRAMS = [block for block in ALL_BLOCKS if block.language == "mermaid"]
_LABEL = re.compile(r"\[\(.*?\)\]|\[.*?\]|\(.*?\)|\|.*?\||\".*?\"")
_ARROW = re.compile(r"\s*(?:<-->|-\.->|-->|-->>|->>)\s*")


def diagrams(kind: str) -> list[Block]:
    return [block for block in DIAGRAMS if block.text.startswith(kind)]


@pytest.mark.parametrize("block", DIAGRAMS, ids=lambda block: f"{block.page}:{block.line}")
def test_a_diagram_is_of_a_known_kind_and_says_what_it_shows(block: Block) -> None:
    assert re.match(r"flowchart (LR|TB)\n|sequenceDiagram\n", block.text)
    assert re.search(r"^ +accTitle: \S", block.text, re.M)
    assert re.search(r"^ +accDescr: \S", block.text, re.M)
    opened = len(re.findall(r"^ +(?:subgraph|loop|alt|opt|par)\b", block.text, re.M))
    assert opened == len(re.findall(r"^ +end$", block.text, re.M))
    for open_bracket, close_bracket in ("[]", "()", "{}"):
        assert block.text.count(open_bracket) == block.text.count(close_bracket)
    assert block.text.count('"') % 2 == 0


@pytest.mark.parametrize("block", diagrams("flowchart"), ids=lambda block: f"{block.page}:{block.line}")
def test_every_box_of_a_flowchart_has_a_label(block: Block) -> None:
    lines = [line for line in block.text.splitlines()[1:] if not re.match(r" +(acc\w+:|subgraph\b|end$)", line)]
    ends = {end.strip() for line in lines for end in _ARROW.split(_LABEL.sub("", line))}
    labelled = set(re.findall(r"\b(\w+)\[", "\n".join(lines)))
    assert ends == labelled


@pytest.mark.parametrize("block", diagrams("sequenceDiagram"), ids=lambda block: f"{block.page}:{block.line}")
def test_messages_of_a_sequence_go_between_its_participants(block: Block) -> None:
    participants = set(re.findall(r"^ +participant (\w+) as ", block.text, re.M))
    messages = re.findall(r"^ +(\w+)-?->>(\w+): \S", block.text, re.M)
    assert {each for message in messages for each in message} == participants
