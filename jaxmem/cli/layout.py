"""`jaxmem layout pim`: where a block of the KV cache lies, as a table or a picture."""

import importlib.util
from pathlib import Path
from typing import Any

import click
import jax
import numpy as np

import jaxmem as jm
from jaxmem.cli import output
from jaxmem.core.errors import InputError
from jaxmem.pim import address, layout, simulate
from jaxmem.pim.address import Map
from jaxmem.report import layout_view
from jaxmem.serving import draw, live

N_HEAT = 1000
"""Steps of the occupancy picture."""


@click.group("layout")
def command() -> None:
    """Where the KV cache lies."""


@command.command("pim")
@click.option("--model", default="llama3-8b", help="Zoo name or path of a config.json.")
@click.option("--device", default="aim-gddr6-16gib", help="Catalog name or path of a TOML file.")
@click.option("--policy", default="patton", help="Runtime, by name.")
@click.option("--ch-per-head", default=0, help="Channels of a KV head; 0: channels / KV heads.")
@click.option("--block-tokens", default=0, help="Tokens of a block; 0: the policy's.")
@click.option("--layer", default=0, help="Layer, of those with a KV cache.")
@click.option("--head", default=0, help="KV head.")
@click.option("--row-set", default=0, help="Row set.")
@click.option("--block", default=0, help="Block of the row set.")
@click.option("--slot", default=0, help="Slot of the last row, the first of the Commit Zone.")
@click.option("--picture", type=click.Path(path_type=Path), help="PNG of a row set with requests.")
@click.option("--lengths", default="700,300,1400", help="Tokens of the pictured requests.")
@click.option("--step", type=int, help="Picture this step of a serving run instead.")
@click.option("--batch", default=8, help="Requests that run at once in it.")
@click.option("--heat", type=click.Path(path_type=Path), help="PNG of occupancy over 1,000 steps.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def pim(
    model: str, device: str, policy: str, ch_per_head: int, block_tokens: int, layer: int,
    head: int, row_set: int, block: int, slot: int, picture: Path | None, lengths: str,
    step: int | None, batch: int, heat: Path | None, as_json: bool,
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
    for name, given, least in (("--step", step, 0), ("--batch", batch, 1)):
        if given is not None and given < least:
            raise InputError(name, given, f"at least {least}")
    if picture is not None:
        _needs_matplotlib("--picture", picture)
        placement, title = _pictured(design, lengths, step, batch)
        layout_view.draw_row_sets(m, placement, picture, title)
    if heat is not None:
        _needs_matplotlib("--heat", heat)
        _, share = _served(design, N_HEAT, batch)
        title = f"{model}, {policy}, {batch} requests at once"
        layout_view.draw_occupancy(share, heat, title)
    if as_json:
        output.print_json(
            {
                "ch_per_head": int(m.ch_per_head), "value_rows": int(m.value_rows),
                "set_blocks": int(m.set_blocks), "row_sets": sets, "row_slots": int(m.row_slots),
                "key": key, "value": value, "zone": zone,
                "picture": str(picture) if picture else None,
                "heat": str(heat) if heat else None,
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
    for path in (picture, heat):
        if path is not None:
            click.echo(f"wrote {path}")


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


def _pictured(design: Any, lengths: str, step: int | None, n_running: int) -> tuple[Any, str]:
    """Requests one after another, or those of a serving run at a step."""
    if step is None:
        try:
            tokens = [int(x) for x in lengths.split(",")]
        except ValueError:
            raise InputError("--lengths", lengths, "token counts, separated by commas") from None
        if not tokens or min(tokens) < 1:
            raise InputError("--lengths", lengths, "token counts of at least 1")
        return layout.contiguous(design, tokens), f"requests of {lengths} tokens"
    placements, _ = _served(design, step + 1, n_running)
    at = jax.tree.map(lambda x: np.asarray(x)[step], placements)
    return at, f"{n_running} requests of a serving run, step {step}"


def _served(design: Any, n_step: int, n_running: int) -> tuple[Any, np.ndarray]:
    """[step] placements, and [step, row set] share of blocks held, of a serving run."""
    traffic = draw("sharegpt", n_conversation=50 + n_running, conversations_per_s=1.0)
    b = simulate.bounds(design, n_running=n_running, n_step=n_step)
    size = int(address.concrete(design).set_blocks)
    n_set = b.pool.max_place // size

    def look(seen: simulate.Step) -> tuple[Any, Any]:
        held = seen.state.memory[b.pool.table : b.pool.table + n_set * size].reshape(n_set, size)
        return seen.all, (held >= 0).mean(1)

    run = jax.jit(lambda d: simulate.drive(d, live.talks(traffic), b, look))
    return jax.device_get(run(design))


def _needs_matplotlib(option: str, path: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError(option, str(path), "matplotlib (pip install jaxmem[report])")
