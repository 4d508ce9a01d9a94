"""How templates become pages: their filters, and the headers of every page."""

import functools
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from relibra import charting
from relibra.status.attempts import explain_end
from relibra.status.explain import write_size
from relibra.status.realised import last_complete
from relibra.status.runbook import runbook_path
from relibra.status.savings import Saving, write_hours
from relibra.status.sparkline import sparkline
from relibra.status.step_figures import PHASE_FIGURES, STEP_FIGURES, Kind

_DASH = "\N{EN DASH}"


def page(request: Request, template: str, *, status: int = 200, **shown: Any) -> Response:
    """Return a page from its template and what the template shows."""
    access = request.app.state.context.access
    text = _templates().get_template(template).render(is_open=not access.is_required, **shown)
    return HTMLResponse(text, status, {"Cache-Control": "private, no-store", "Vary": "Authorization"})


@functools.cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("relibra.status"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"plotly_version": charting.VERSION, "sparkline": sparkline, "explain_end": explain_end}
    environment.globals |= {"runbook_path": runbook_path, "phase_figures": PHASE_FIGURES}
    environment.globals["step_figures"] = [figure for figure in STEP_FIGURES if figure.heading]
    environment.filters |= {"ratio": _ratio, "size": write_size, "when": _write_time, "clock": _clock, "count": _count}
    environment.filters |= {
        "addressed": _query,
        "seconds": _seconds,
        "last_complete": last_complete,
        "hours": _hours,
        "written": _write,
    }
    return environment


def _query(asked: Mapping[str, str], **change: str) -> str:
    """Return the query of what was asked with a change; empty values are left out."""
    return urlencode({name: value for name, value in {**asked, **change}.items() if value})


def _write(value: float | None, kind: Kind) -> str:
    """Return a figure of this kind as text."""
    return _DASH if value is None else _WAYS[kind](value)


def _ratio(value: float | None) -> str:
    return _DASH if value is None else f"{value:.3f}"


def _seconds(time_s: float | None) -> str:
    return _DASH if time_s is None else f"{time_s:.2f} s"


def _hours(saving: Saving) -> str:
    return _DASH if saving.saved_gpu_hours is None else write_hours(saving.saved_s)


def _count(value: float) -> str:
    return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


_WAYS: Mapping[Kind, Callable[[float], str]] = {
    "ratio": _ratio,
    "count": _count,
    "seconds": _seconds,
    "size": write_size,
    "gpu_hours": lambda hours: write_hours(hours * 3600),
}


def _clock(moment: datetime) -> Markup:
    """Return a time that stays a time of day, where `_write_time` becomes an age."""
    return Markup('<time class="clock" datetime="{}">{}</time>').format(moment.isoformat(), f"{moment:%m-%d %H:%M:%S}")


def _write_time(unix_time_s: float) -> Markup:
    moment = datetime.fromtimestamp(unix_time_s, tz=UTC)
    return Markup('<time datetime="{}">{}</time>').format(moment.isoformat(), f"{moment:%Y-%m-%d %H:%M:%S} UTC")
