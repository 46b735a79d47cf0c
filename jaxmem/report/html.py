"""One self-contained HTML page: headings, text, tables, and pictures inside it."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem;
       color: #1b1f24; background: #fff; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; margin: 1rem 0; font-size: .92rem; }
th, td { text-align: left; padding: .3rem .8rem; border-bottom: 1px solid #d8dee4; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
img { max-width: 100%; } p.note { color: #57606a; }
@media (prefers-color-scheme: dark) {
  body { background: #0d1117; color: #e6edf3; } th, td { border-color: #30363d; }
  p.note { color: #8b949e; } img { background: #fff; border-radius: 6px; }
}
"""


def heading(text: str) -> str:
    """A section's heading."""
    return f"<h2>{escape(text)}</h2>"


def note(text: str) -> str:
    """A paragraph."""
    return f'<p class="note">{escape(text)}</p>'


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table; cells that begin with a digit are set as numbers."""
    head = "".join(f"<th>{escape(c)}</th>" for c in columns)
    body = "".join("<tr>" + "".join(_cell(str(c)) for c in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def picture(path: Path, text: str) -> str:
    """A PNG, embedded, with its description."""
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{escape(text)}" src="data:image/png;base64,{data}">'


def write(path: Path, title: str, parts: Sequence[str]) -> None:
    """Write the page."""
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><h1>{escape(title)}</h1>{''.join(parts)}</body></html>"
    )
    path.write_text(page, encoding="utf-8")


def _cell(text: str) -> str:
    kind = ' class="number"' if text[:1].isdigit() else ""
    return f"<td{kind}>{escape(text)}</td>"
