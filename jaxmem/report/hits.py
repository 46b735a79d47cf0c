"""Hit rate against cache capacity, in blocks, tokens and, for a model, GiB with devices marked."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxmem.core.units import GIB
from jaxmem.report import figures

_N_POINT = 400


def hit_figure(
    path: Path,
    curve: Any,
    exact: Sequence[tuple[int, float]],
    *,
    title: str,
    exact_label: str,
    token_bytes: float | None = None,
    devices: Mapping[str, float] | None = None,
) -> None:
    """Write the hit rate at every capacity as PNG.

    Args:
        path: of the picture.
        curve: `serving.reuse.Curve` of the prompts.
        exact: (blocks, hit rate) of exact replays.
        title: what was replayed.
        exact_label: how, in words.
        token_bytes: KV cache of a token; adds an axis in GiB.
        devices: bytes for KV cache by name, marked where the picture reaches them.
    """
    figure, (axis,) = figures.panels(1, width=9.0)
    size = curve.block_tokens
    last = max(len(curve.hit_blocks), 2, *(2 * blocks for blocks, _ in exact))
    blocks = np.unique(np.geomspace(max(last / 1e4, 1), last, _N_POINT).round())
    rate = 100 * np.asarray(curve.hit_rate(blocks))
    axis.semilogx(blocks, rate, color="#0b6fa4", label="prompts alone, LRU, every capacity")
    axis.plot(*np.asarray([(b, 100 * r) for b, r in exact]).T, "o", color="#c8553d",
              label=exact_label)  # fmt: skip
    axis.set_xlabel(f"capacity [blocks of {size} tokens]")
    axis.set_ylabel("prompt tokens found [%]")
    axis.set_title(title, loc="left", fontsize=10)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.25)
    scale = _scaled(size)
    axis.secondary_xaxis(-0.17, functions=scale).set_xlabel("capacity [tokens]")
    if token_bytes:
        scale = _scaled(size * token_bytes / GIB)
        axis.secondary_xaxis("top", functions=scale).set_xlabel("capacity [GiB]")
        low, high = axis.get_xlim()
        places = {n: b / (size * token_bytes) for n, b in (devices or {}).items()}
        for place, names in _together(places):
            if low < place < high:
                axis.axvline(place, color="#4d4d4d", lw=0.8, ls=":")
                text = f" {', '.join(names)}"
                axis.text(place, 0.5, text, rotation=90, fontsize=7, va="bottom", ha="right")
    axis.legend(fontsize=8, loc="upper left")
    figures.save(figure, path)


def _together(places: Mapping[str, float]) -> list[tuple[float, list[str]]]:
    """Names that lie too close to be written apart, each group at its first place."""
    groups: list[tuple[float, list[str]]] = []
    for name, place in sorted(places.items(), key=lambda item: item[1]):
        if groups and place < 1.03 * groups[-1][0]:
            groups[-1][1].append(name)
        else:
            groups.append((place, [name]))
    return groups


def _scaled(factor: float):
    return (lambda x: x * factor, lambda x: x / factor)
