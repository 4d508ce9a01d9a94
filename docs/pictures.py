"""Draws the pictures of ideas: `python docs/pictures.py` writes them into `images`.

Plain SVG with a background of its own, so that it reads the same wherever it stands, and darker where the reader's
system is dark.
"""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

FOLDER = Path(__file__).with_name("images")
Point = tuple[float, float]

_STYLE = """
    text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2430; }
    .title { font-weight: 600; } .head { font-size: 15px; font-weight: 600; } .note { fill: #596073; }
    .ground { fill: #ffffff; stroke: #d5d9e3; } .box { fill: #eef2fb; stroke: #7d8db5; } .node { fill: #f6f7fa;
    stroke: #c2c8d6; } .store { fill: #fdf0e1; stroke: #c4965a; } .line { fill: none; stroke: #596073;
    stroke-width: 1.5; } .dash { stroke-dasharray: 5 4; } .tip { fill: #596073; } .limit { stroke: #b3261e;
    stroke-width: 1.5; stroke-dasharray: 5 4; } .limit-text { fill: #b3261e; font-weight: 600; } .plate { fill: #ffffff;
    } .label { fill: #1f2430; font-weight: 600; }
    @media (prefers-color-scheme: dark) { text { fill: #e6e8ee; } .note { fill: #a6adbf; } .ground { fill: #171a21;
    stroke: #3a4050; } .box { fill: #253049; stroke: #7d8db5; } .node { fill: #1e222c; stroke: #4a5164; } .store {
    fill: #3a2d1c; stroke: #c4965a; } .line { stroke: #a6adbf; } .tip { fill: #a6adbf; } .limit { stroke: #ff8a80; }
    .limit-text { fill: #ff8a80; } .plate { fill: #171a21; } .label { fill: #12151c; } }
"""
_EXPERT_COLOURS = ("#e8927c", "#e6bf6a", "#9cc27e", "#74bda8", "#7fb2d9", "#9d9fd8", "#cf97c6", "#b3b3b3")
_LINE_HEIGHT = 18


class Picture:
    """An SVG picture that grows by what is drawn on it."""

    def __init__(self, width: int, height: int, description: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img">',
            f"  <title>{escape(description)}</title>",
            f"  <style>{_STYLE}  </style>",
            f'  <rect class="ground" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>',
        ]

    def svg(self) -> str:
        """The picture as text."""
        return "\n".join([*self._parts, "</svg>", ""])

    def text(self, at: Point, words: str, style: str = "", *, anchor: str = "middle") -> None:
        """One line of text, its baseline at `at`."""
        self._parts.append(
            f'  <text class="{style}" x="{at[0]:g}" y="{at[1]:g}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def box(self, at: Point, size: Point, *lines: str, style: str = "box") -> None:
        """A box with its upper left corner at `at` and lines in its middle, the first one a title."""
        (x, y), (width, height) = at, size
        self._parts.append(
            f'  <rect class="{style}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>'
        )
        first = y + height / 2 - (len(lines) - 1) * _LINE_HEIGHT / 2 + 4.5
        for number, line in enumerate(lines):
            self.text((x + width / 2, first + number * _LINE_HEIGHT), line, "note" if number else "title")

    def frame(self, at: Point, size: Point, title: str) -> None:
        """A box around others, with its title on top."""
        self.box(at, size, style="node")
        self.text((at[0] + 12, at[1] + 20), title, "title", anchor="start")

    def arrow(self, *points: Point, label: str = "", label_at: Point | None = None, dashed: bool = False) -> None:
        """An arrow along `points`, whose last part is horizontal or vertical."""
        (x, y), (before_x, before_y) = points[-1], points[-2]
        dx, dy = (x > before_x) - (x < before_x), (y > before_y) - (y < before_y)
        path = " ".join(f"{px:g},{py:g}" for px, py in [*points[:-1], (x - 6 * dx, y - 6 * dy)])
        back, side = (x - 9 * dx, y - 9 * dy), (4 * dy, 4 * dx)
        tip = f"{x:g},{y:g} {back[0] - side[0]:g},{back[1] - side[1]:g} {back[0] + side[0]:g},{back[1] + side[1]:g}"
        self._parts.append(f'  <polyline class="line{" dash" if dashed else ""}" points="{path}"/>')
        self._parts.append(f'  <polygon class="tip" points="{tip}"/>')
        if label and label_at:
            self.text(label_at, label, "note")

    def bar(self, at: Point, size: Point, expert: int, words: str) -> None:
        """A part of a rank's load, in the colour of its expert."""
        (x, y), (width, height) = at, size
        colour = _EXPERT_COLOURS[expert]
        self._parts.append(
            f'  <rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{colour}" stroke="#ffffff"/>'
        )
        self.text((x + width / 2, y + height / 2 + 4.5), words, "label")

    def limit(self, start: Point, end: Point) -> None:
        """The line of the slowest rank."""
        self._parts.append(
            f'  <line class="limit" x1="{start[0]:g}" y1="{start[1]:g}" x2="{end[0]:g}" y2="{end[1]:g}"/>'
        )


def balance() -> Picture:
    """One cell of four ranks on two nodes: as it is, reordered, and with replicas."""
    picture = Picture(900, 352, "Load of four ranks: plain, after reordering experts, after replicating hot ones")
    ranks: Sequence[tuple[str, str, list[list[tuple[int, int]]]]] = (
        (
            "plain expert parallelism",
            "three ranks wait: imbalance 2.0",
            [[(0, 10), (1, 6)], [(2, 3), (3, 3)], [(4, 4), (5, 2)], [(6, 2), (7, 2)]],
        ),
        (
            "reorder, once a step",
            "every node has its share: 1.5",
            [[(0, 10), (7, 2)], [(5, 2), (6, 2)], [(1, 6), (2, 3)], [(3, 3), (4, 4)]],
        ),
        (
            "replicate and split, every cell",
            "nobody waits: 1.0",
            [[(0, 6), (7, 2)], [(0, 4), (5, 2), (6, 2)], [(1, 5), (2, 3)], [(1, 1), (3, 3), (4, 4)]],
        ),
    )
    ground, height_of_one, width = 272, 13, 56
    for panel, (title, outcome, load) in enumerate(ranks):
        left = 24 + 290 * panel
        picture.text((left + 136, 28), title, "head")
        for node in range(2):
            picture.box((left + node * 138, ground + 4), (132, 42), style="node")
            picture.text((left + node * 138 + 66, ground + 40), f"node {node}", "note")
        for rank, experts in enumerate(load):
            x, top = left + 8 + rank // 2 * 138 + rank % 2 * 60, float(ground)
            picture.text((x + width / 2, ground + 20), f"rank {rank}")
            for expert, tokens in experts:
                top -= tokens * height_of_one
                picture.bar((x, top), (width, tokens * height_of_one), expert, f"e{expert}" if tokens > 1 else "")
        slowest = ground - max(sum(tokens for _, tokens in experts) for experts in load) * height_of_one
        picture.limit((left, slowest), (left + 270, slowest))
        picture.text((left + 136, ground + 68), outcome, "limit-text" if panel == 0 else "title")
    return picture


def parts() -> Picture:
    """Who talks to whom."""
    picture = Picture(900, 344, "Rollout workers and trainer ranks talk to the planner, which keeps all in Redis")
    picture.box((24, 60), (200, 72), "rollout workers", "routed experts -> counts", "RolloutReporter")
    picture.box((24, 196), (200, 72), "trainer driver", "registers the job,", "submits the schedule")
    picture.box(
        (350, 60), (200, 208), "planner", "stateless, many jobs,", "any number of them", "", "solve, check, publish"
    )
    picture.box(
        (676, 60),
        (200, 208),
        "trainer ranks",
        "megatron-core,",
        "an agent each",
        "",
        "agree on the plan,",
        "reorder, replicate",
    )
    picture.box((350, 292), (200, 28), "Redis: all durable state", style="store")
    picture.box((676, 292), (200, 28), "status service, read only")
    picture.arrow((224, 84), (350, 84), label="counts", label_at=(287, 76))
    picture.arrow((350, 112), (224, 112), label="durable", label_at=(287, 128))
    picture.arrow((224, 232), (350, 232), label="schedule", label_at=(287, 224))
    picture.arrow((550, 84), (676, 84), label="rank plan", label_at=(613, 76))
    picture.arrow((676, 232), (550, 232), label="realised loads", label_at=(613, 224))
    picture.arrow((450, 268), (450, 292))
    picture.arrow((550, 306), (676, 306))
    picture.text((450, 32), "one step: counts in, one plan out; nothing waits for the network inside a layer", "head")
    return picture


def step() -> Picture:
    """One step by file, from the engine to the MoE layer."""
    picture = Picture(1028, 532, "One step by file: rollout worker, planner, Redis, trainer rank, status")
    picture.frame((24, 24), (240, 138), "rollout worker")
    picture.box((44, 52), (200, 30), "engine: routed_experts")
    picture.box((44, 102), (200, 44), "rollout/reporter", "counts, bounded buffer")
    picture.box((24, 190), (240, 34), "trainer driver")
    picture.frame((344, 24), (240, 322), "planner")
    picture.text((464, 74), "stateless, any number of them", "note")
    picture.box((364, 102), (200, 44), "planner/routing_service", "check, batch, acknowledge")
    picture.box((364, 176), (200, 62), "planner/plan_service", "schedule in,", "rank plans out")
    picture.box((364, 268), (200, 62), "planning/solve", "reorder, replicate, split,", "bound, check")
    picture.box((344, 404), (240, 44), "Redis", "counts, schedules, plans, reports", style="store")
    picture.box((344, 472), (240, 44), "status/app", "pages, JSON, metrics")
    picture.frame((664, 24), (340, 492), "trainer rank")
    picture.text((834, 74), "the rank's own thread fetches;", "note")
    picture.text((834, 92), "no layer waits for the network", "note")
    picture.box((734, 176), (200, 62), "agent/session", "prefetch,", "report")
    picture.box((734, 268), (200, 62), "agent/agreement", "one plan id", "for all ranks")
    picture.box((680, 364), (150, 62), "agent/reorder", "weights, moments", "at the boundary")
    picture.box((838, 364), (150, 62), "agent/replicate", "copies in,", "gradients back")
    picture.box((680, 456), (308, 44), "agent/megatron", "the MoE layer")
    picture.arrow((144, 82), (144, 102))
    picture.arrow((244, 124), (364, 124), label="gRPC stream", label_at=(304, 116))
    picture.arrow((264, 207), (364, 207), label="schedule", label_at=(304, 199))
    picture.arrow((564, 196), (734, 196), label="rank plan", label_at=(624, 188))
    picture.arrow((734, 218), (564, 218), label="realised", label_at=(624, 236))
    picture.arrow((430, 346), (430, 404), label="write", label_at=(406, 380))
    picture.arrow((498, 404), (498, 346), label="read", label_at=(518, 380))
    picture.arrow((464, 448), (464, 472))
    picture.arrow((834, 238), (834, 268))
    for x in (772.0, 896.0):
        picture.arrow((x, 330), (x, 364))
        picture.arrow((x, 426), (x, 456))
    return picture


def planning() -> Picture:
    """The way from load to plan."""
    picture = Picture(900, 262, "From the load to the plan: reorder, replicate, split, bound and floor, replan")
    size = (132, 62)
    picture.box((20, 40), size, "load", "[M, L, E]", style="store")
    for x, y, *lines in (
        (200, 40, "reorder", "experts over nodes"),
        (380, 40, "reorder", "ranks inside nodes"),
        (560, 40, "replicate", "copies and quotas"),
        (740, 40, "split", "shares of sources"),
        (380, 150, "floor", "of any placement"),
        (560, 150, "bound", "of this placement"),
    ):
        picture.box((float(x), float(y)), size, *(str(line) for line in lines))  # type: ignore[arg-type]
    picture.box((740, 150), size, "plan", "and its reason", style="store")
    for x in (152, 332, 512, 692):
        picture.arrow((x, 71), (x + 48, 71))
    picture.arrow((626, 102), (626, 150))
    picture.arrow((806, 102), (806, 150))
    picture.arrow((692, 181), (740, 181))
    picture.arrow((86, 102), (86, 181), (380, 181))
    picture.arrow((446, 212), (446, 230), (780, 230), (780, 212))
    picture.arrow((840, 212), (840, 244), (40, 244), (40, 102), dashed=True)
    picture.text((200, 236), "late change: replan", "note")
    return picture


PICTURES: dict[str, Callable[[], Picture]] = {
    "concept-balance": balance,
    "concept-parts": parts,
    "architecture-step": step,
    "planning-way": planning,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")
