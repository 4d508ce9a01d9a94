"""The fenced blocks of the pages, for tests that run them.

A block that no test can run has its reason right above it: `<!-- not run here: … -->`.
"""

import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((REPOSITORY / "docs").rglob("*.md")),
    *sorted((REPOSITORY / "examples").rglob("*.md")),
]
_BLOCK = re.compile(
    r"(?:^<!-- not run here: (?P<reason>.+?) -->\n)?^```(?P<language>.*)\n(?P<text>(?:.*\n)*?)^```$", re.M
)


@dataclass(frozen=True)
class Block:
    """A block of a page; `page` is the path of the page in the repository."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None
    """The reason why no test runs the block."""

    @property
    def is_run(self) -> bool:
        """Return whether a test must run the block."""
        return self.reason is None

    @property
    def commands(self) -> list[str]:
        """The lines of the block as a shell takes them, without comments."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [command for line in lines if (command := re.sub(r"(^|\s)#.*", "", line).strip())]


def blocks(page: str | Path) -> list[Block]:
    """Return all blocks of a page, in order."""
    path = REPOSITORY / page
    text = path.read_text(encoding="utf-8")
    return [
        Block(
            page=str(path.relative_to(REPOSITORY)),
            line=text.count("\n", 0, match.start("language")) + 1,
            language=match["language"],
            text=match["text"],
            reason=match["reason"],
        )
        for match in _BLOCK.finditer(text)
    ]


def python_of(page: str) -> list[str]:
    """Return the Python blocks of a page, which its test runs one after the other."""
    return [block.text for block in blocks(page) if block.language == "python" and block.is_run]


ALL_BLOCKS = [block for page in PAGES for block in blocks(page)]
