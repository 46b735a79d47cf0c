"""Pictures of PIM memory: row sets with granules coloured by request, and occupancy over time."""

from pathlib import Path
from typing import Any

import numpy as np

from jaxmem.pim import address
from jaxmem.pim.address import Map

MAX_SET = 6
MAX_CHANNEL = 8


def row_sets(m: Map, placement: Any) -> tuple[np.ndarray, list[str], list[int]]:
    """Which request each burst of the first row sets in use, and of the zone, belongs to.

    Args:
        m: the map, concrete.
        placement: concrete, of one step.

    Returns:
        ([channel, row, burst] request, NaN for none; names of the rows; the channels).
    """
    n_home, r, width = int(m.n_home), int(m.value_rows), int(m.row_bursts)
    used = sorted(set((placement.row_set[placement.row_set >= 0] // n_home).tolist()))[:MAX_SET]
    homes = sorted(set((placement.row_set[placement.row_set >= 0] % n_home).tolist()))
    channels = homes[:MAX_CHANNEL] if n_home > 1 else list(range(int(m.ch_per_head)))[:MAX_CHANNEL]
    first = {number: 2 * r * i for i, number in enumerate(used)}
    n_row = 2 * r * len(used)
    grid = np.full((len(channels), n_row + 1, width), np.nan)

    def paint(channel: Any, row: Any, burst: Any, n_burst: int, request: int, number: int) -> None:
        down = first[number] + int(row) - 2 * r * number if number >= 0 else n_row
        if int(channel) in channels:
            grid[channels.index(int(channel)), down, int(burst) : int(burst) + n_burst] = request

    for request in np.flatnonzero(placement.n_token > 0).tolist():
        n_token, size = int(placement.n_token[request]), int(m.block_tokens)
        for block in range(-(-n_token // size)):
            at = (placement.row_set[request, block], placement.index[request, block])
            number = int(at[0]) // n_home
            if number not in first:
                continue
            _keys(m, address.key_block(m, *at), request, number, paint)
            if int(m.is_burst):
                _keys(m, address.value_block(m, *at), request, number, paint)
                continue
            is_staged = placement.zone_row[request] >= 0 and (block + 1) * size > n_token
            for q in range(int(m.n_subblock)):
                if is_staged:
                    slot = placement.zone_slot[request]
                    channel, row, burst = address.zone_subblock(m, 0, slot, q)
                else:
                    channel, row, burst = address.value_subblock(m, *at, q)
                where = -1 if is_staged else number
                paint(channel, row, burst, int(m.value_bursts), request, where)
    names = [f"{'KV'[i // r % 2]} {number}" for number in used for i in range(2 * r)]
    return grid, [*names, "zone"], channels


def _keys(m: Map, block: Any, request: int, number: int, paint: Any) -> None:
    channel, row, burst = block
    for g in range(int(m.key_groups)):
        down, right = divmod(g, int(m.key_unit_groups))
        width = int(m.key_bursts)
        paint(channel, row + down, burst + right * width, width, request, number)


def draw_row_sets(m: Map, placement: Any, path: Path, title: str) -> None:
    """A PNG of `row_sets`, a panel a channel."""
    grid, names, channels = row_sets(m, placement)
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(
        1, len(grid), figsize=(3.2 * len(grid), 1.4 + 0.2 * len(names)), sharey=True,
        squeeze=False, layout="constrained",
    )  # fmt: skip
    for channel, axis, part in zip(channels, axes[0], grid, strict=True):
        axis.imshow(part % 20, aspect="auto", cmap="tab20", vmin=0, vmax=19, interpolation="none")
        axis.set_title(f"channel {channel}")
        axis.set_xlabel("burst")
    axes[0][0].set_yticks(range(len(names)), names)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw_occupancy(share: np.ndarray, path: Path, title: str) -> None:
    """A PNG of how full each row set is at each step.

    Args:
        share: [step, row set] blocks held, as a share of a row set's.
        path: of the picture.
        title: above it.
    """
    pyplot = _pyplot()
    figure, axis = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    shown = axis.imshow(
        share.T, aspect="auto", origin="lower", cmap="viridis", vmin=0, vmax=1,
        interpolation="none",
    )  # fmt: skip
    axis.set_xlabel("scheduler step")
    axis.set_ylabel("row set")
    figure.colorbar(shown, label="blocks held, in use or cached, as a share")
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
