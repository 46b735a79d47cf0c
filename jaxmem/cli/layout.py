"""`jaxmem layout pim`: where a block of the KV cache lies, as a table or a picture."""

from pathlib import Path

import click
import numpy as np

import jaxmem as jm
from jaxmem.cli import output
from jaxmem.core.errors import InputError
from jaxmem.pim import address, layout
from jaxmem.pim.address import Map


@click.group("layout")
def command() -> None:
    """Where the KV cache lies."""


@command.command("pim")
@click.option("--model", default="llama3-8b", help="Zoo name or path of a config.json.")
@click.option("--device", default="aim-gddr6-16gib", help="Catalog name or path of a TOML file.")
@click.option("--policy", default="patton", help="Runtime, by name.")
@click.option("--ch-per-head", default=0, help="Channels of a KV head; 0: channels / KV heads.")
@click.option("--block-tokens", default=16, help="Tokens of a block.")
@click.option("--layer", default=0, help="Layer, of those with a KV cache.")
@click.option("--head", default=0, help="KV head.")
@click.option("--row-set", default=0, help="Row set.")
@click.option("--block", default=0, help="Block of the row set.")
@click.option("--slot", default=0, help="Slot of the last row, the first of the Commit Zone.")
@click.option("--picture", type=click.Path(path_type=Path), help="PNG of a row set with requests.")
@click.option("--lengths", default="700,300,1400", help="Tokens of the pictured requests.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def pim(
    model: str, device: str, policy: str, ch_per_head: int, block_tokens: int, layer: int,
    head: int, row_set: int, block: int, slot: int, picture: Path | None, lengths: str,
    as_json: bool,
) -> None:  # fmt: skip
    """The cells of one block, of a Key, a Value and a Commit Zone slot."""
    design = jm.pim.Design.create(
        device=device, llm=model, policy=policy, ch_per_head=ch_per_head, block_tokens=block_tokens
    )
    m = address.concrete(design)
    sets = int(address.n_set(m, 1))
    for name, value, n in (
        ("--layer", layer, int(m.n_layer)),
        ("--head", head, int(m.n_kv)),
        ("--row-set", row_set, sets),
        ("--block", block, int(m.set_blocks)),
        ("--slot", slot, int(m.row_slots)),
    ):
        if not 0 <= value < n:
            raise InputError(name, value, f"a number from 0 to {n - 1}" if n else "a layout")
    key, value = _key(m, layer, head, row_set, block), _value(m, layer, head, row_set, block)
    zone = _zone(m, layer, head, slot)
    if picture is not None:
        _draw(design, m, lengths, picture)
    if as_json:
        output.print_json(
            {
                "ch_per_head": int(m.ch_per_head), "value_rows": int(m.value_rows),
                "set_blocks": int(m.set_blocks), "row_sets": sets, "row_slots": int(m.row_slots),
                "key": key, "value": value, "zone": zone,
                "picture": str(picture) if picture else None,
            }
        )  # fmt: skip
        return
    where = f"layer {layer}, KV head {head}, row set {row_set}, block {block}"
    click.echo(
        f"{where}: {int(m.ch_per_head)} channels a head, {int(m.value_rows)} rows of Keys and of "
        f"Values a set, {int(m.set_blocks)} blocks a set, {sets} sets beside one zone row"
    )
    columns = ["what", "channel", "banks", "row", "bursts"]
    rows = [(x["what"], x["channel"], x["banks"], x["row"], x["bursts"]) for x in key]
    output.table("Key: a token a bank", columns, rows)
    rows = [(x["what"], x["channel"], x["banks"], x["row"], x["bursts"]) for x in value]
    output.table("Value: an element a bank", columns, rows)
    rows = [(x["what"], x["channel"], x["banks"], x["row"], x["bursts"]) for x in zone]
    output.table(f"Value in Commit Zone slot {slot}", columns, rows)
    if picture is not None:
        click.echo(f"wrote {picture}")


def _entry(what: str, cell: address.Cell, n_bank: int, width: int) -> dict:
    first = int(cell.burst)
    return {
        "what": what, "channel": int(cell.channel), "banks": f"0-{n_bank - 1}",
        "row": int(cell.row), "bursts": f"{first}-{first + width - 1}",
    }  # fmt: skip


def _key(m: Map, layer: int, head: int, row_set: int, block: int) -> list[dict]:
    n_bank = int(m.n_bank)
    return [
        _entry(
            f"tokens {g * n_bank}-{(g + 1) * n_bank - 1}",
            address.key_cell(m, layer, head, row_set, block, g * n_bank, 0),
            n_bank, int(m.key_bursts),
        )
        for g in range(int(m.key_groups))
    ]  # fmt: skip


def _subblocks(m: Map, cell) -> list[dict]:
    n_bank = int(m.n_bank)
    return [
        _entry(
            f"elements {q * n_bank}-{min((q + 1) * n_bank, int(m.head_dim)) - 1}",
            cell(q * n_bank), n_bank, int(m.value_bursts),
        )
        for q in range(int(m.n_subblock))
    ]  # fmt: skip


def _value(m: Map, layer: int, head: int, row_set: int, block: int) -> list[dict]:
    return _subblocks(m, lambda e: address.value_cell(m, layer, head, row_set, block, 0, e))


def _zone(m: Map, layer: int, head: int, slot: int) -> list[dict]:
    return _subblocks(m, lambda e: address.zone_cell(m, layer, head, 0, slot, 0, e))


def _draw(design, m: Map, lengths: str, path: Path) -> None:
    """Rows and bursts of the first row sets and the zone, by channel, coloured by request."""
    try:
        tokens = [int(x) for x in lengths.split(",")]
    except ValueError:
        raise InputError("--lengths", lengths, "token counts, separated by commas") from None
    if not tokens or min(tokens) < 1:
        raise InputError("--lengths", lengths, "token counts of at least 1")
    try:
        import matplotlib
    except ImportError:
        raise InputError(
            "--picture", str(path), "matplotlib (pip install jaxmem[report])"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    placement = layout.contiguous(design, tokens)
    n_set = int(placement.row_set.max()) + 1
    n_row, width = n_set * 2 * int(m.value_rows), int(m.row_bursts)
    grid = np.full((int(m.ch_per_head), n_row + 1, width), np.nan)
    size = int(m.block_tokens)
    for request, n_token in enumerate(tokens):
        for block in range(-(-n_token // size)):
            at = (placement.row_set[request, block], placement.index[request, block])
            channel, row, burst = address.key_block(m, *at)
            for g in range(int(m.key_groups)):
                down, right = divmod(g, int(m.key_unit_groups))
                first = int(burst) + right * int(m.key_bursts)
                grid[channel, row + down, first : first + int(m.key_bursts)] = request
            is_staged = placement.zone_row[request] >= 0 and (block + 1) * size > n_token
            for q in range(int(m.n_subblock)):
                if is_staged:
                    slot = placement.zone_slot[request]
                    channel, _, burst = address.zone_subblock(m, 0, slot, q)
                    row = n_row
                else:
                    channel, row, burst = address.value_subblock(m, *at, q)
                grid[channel, row, int(burst) : int(burst) + int(m.value_bursts)] = request
    figure, axes = pyplot.subplots(
        1, len(grid), figsize=(3.2 * len(grid), 1.2 + 0.22 * (n_row + 1)), sharey=True,
        squeeze=False, layout="constrained",
    )  # fmt: skip
    for channel, axis in enumerate(axes[0]):
        axis.imshow(grid[channel], aspect="auto", cmap="tab10", vmin=0, vmax=9)
        axis.set_title(f"channel {channel}")
        axis.set_xlabel("burst")
    names = [
        f"{'KV'[row // int(m.value_rows) % 2]} {row // (2 * int(m.value_rows))}"
        for row in range(n_row)
    ]
    axes[0][0].set_yticks(range(n_row + 1), [*names, "zone"])
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
