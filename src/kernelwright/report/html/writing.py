"""Templates to self-contained HTML files: one environment and one writer for every page.

Everything that a template prints is cleaned and escaped here, so that no page has to think of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from kernelwright.report.charts import value_text
from kernelwright.report.svg import number
from kernelwright.report.text import clean
from kernelwright.store.files import explain, write_atomically
from kernelwright.version import VERSION

_ASSETS = Path(__file__).parents[1] / "assets"


def render_page(template: str, context: Mapping[str, Any]) -> str:
    """A page as text; the template finds `css`, `js` and `version` beside its context."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_ASSETS),
        autoescape=True,
        finalize=_shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    environment.filters["breakable"] = _breakable
    environment.filters["value_text"] = lambda value: clean(value_text(value))
    own = {"css": _asset("report.css"), "js": _asset("report.js"), "version": VERSION}
    return environment.get_template(template).render({**own, **context})


def live_script() -> str:
    """What keeps a page up to date that is served while its run grows."""
    return _asset("live.js")


def write_page(text: str, out: Path) -> Path:
    """Write a page and return its path; a file already there is replaced whole or not at all.

    Raises:
        StoreError: the file cannot be written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, text.encode())
    except OSError as error:
        raise explain(error, "write the report to", out) from error
    return out


def _shown(value: object) -> object:
    """Everything that a template prints passes here: text of others is cleaned, our own markup is kept."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _breakable(text: str) -> Markup:
    """`text`, which may be a long name, with places where a line may end after an underscore or a dot."""
    return Markup("<wbr>").join(clean(part) for part in re.findall(r"[^_.]*[_.]+|[^_.]+", text))


def _asset(name: str) -> Markup:
    """One of our own files, put into the page as it is."""
    return Markup((_ASSETS / name).read_text(encoding="utf-8"))  # noqa: S704 - part of the package, not input
