"""`jaxmem replay TRACE`: a request trace through the prefix cache, at several capacities."""

import sys
import time
from pathlib import Path
from typing import Any

import click

import jaxmem as jm
from jaxmem.cli import output
from jaxmem.core.errors import InputError
from jaxmem.core.units import GIB
from jaxmem.serving import reuse
from jaxmem.serving.blocks import block
from jaxmem.serving.eviction import POLICIES
from jaxmem.serving.replay import replay
from jaxmem.serving.traces import read_trace


@click.command("replay")
@click.argument("trace")
@click.option("--block-tokens", default="16", show_default=True, help="Tokens of a KV block.")
@click.option(
    "--capacity-blocks", default="5000,20000,100000", show_default=True,
    help="Blocks of the pool, with the null block that vLLM never uses; several with commas.",
)  # fmt: skip
@click.option(
    "--policy", default="lru", show_default=True, help="Eviction: " + ", ".join(POLICIES) + "."
)
@click.option("--model", help="Model, for capacities in GiB: zoo name or path of a config.json.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the picture.")
@click.option("--skip-bad", is_flag=True, help="Leave bad rows out, and count them.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(trace, block_tokens, capacity_blocks, policy, model, out, skip_bad, as_json) -> None:
    """Replay TRACE through vLLM's prefix cache, request after request.

    TRACE: Mooncake or Bailian JSONL, Azure or BurstGPT CSV, ShareGPT JSON; .gz too.
    """
    size = _whole("--block-tokens", block_tokens)
    capacities = [_whole("--capacity-blocks", text, 2) for text in capacity_blocks.split(",")]
    if policy not in POLICIES:
        rule = "one of " + ", ".join(POLICIES)
        raise InputError("--policy", policy, rule, known=POLICIES)
    token_bytes = None if model is None else _token_bytes(model)
    requests = read_trace(trace, skip_bad=skip_bad, block_tokens=size)
    if requests.n_skipped:
        click.echo(f"{requests.n_skipped:,} bad rows skipped", err=True)
    blocked = block(requests, size)
    results = [
        {"capacity_blocks": n, **_replayed(blocked, n, policy).summary()} for n in capacities
    ]
    if out is not None:
        picture = _draw(out, trace, blocked, results, policy, model, token_bytes)
        click.echo(f"wrote {picture}", err=True)
    if as_json:
        n, total = len(requests.input_tokens), int(requests.input_tokens.sum())
        output.print_json({"requests": n, "prompt_tokens": total, "results": results})
        return
    output.table(
        f"{Path(trace).name}: {len(requests.input_tokens):,} requests, "
        f"{int(requests.input_tokens.sum()):,} prompt tokens, blocks of {size}, {policy}",
        ["blocks", "GiB", "rejected", "hit tokens", "hit rate", "evictions"],
        [_cells(row, size, token_bytes) for row in results],
    )
    if not requests.id_tokens:
        click.echo("this trace tells no content: nothing can hit")


def _whole(flag: str, text: str, least: int = 1) -> int:
    if not text.strip().isdecimal() or not least <= int(text) <= 2**26:
        raise InputError(flag, text, f"a whole number from {least} to {2**26}")
    return int(text)


def _token_bytes(model: str) -> float:
    return float(jm.llm.kv_bytes_token(jm.llm.layer_table(jm.llm.load(model))))


def _replayed(blocked: Any, n_block: int, policy: str):
    """A replay; on a terminal a line on stderr says how far it is."""
    started = time.perf_counter()
    shows = sys.stderr.isatty()

    def advance(done: int, total: int) -> None:
        rate = done / (time.perf_counter() - started)
        left = (total - done) / rate
        text = f"\r{n_block:,} blocks: {done:,} of {total:,}, {rate:,.0f} requests/s, {left:.0f} s"
        click.echo(text + " left   ", err=True, nl=done == total)

    return replay(blocked, n_block, policy=policy, advance=advance if shows else None)


def _cells(row: dict[str, Any], size: int, token_bytes: float | None) -> tuple[str, ...]:
    n = row["capacity_blocks"]
    gib = "-" if token_bytes is None else f"{n * size * token_bytes / GIB:,.1f}"
    rate = f"{row['hit_rate']:.4%}" if row["accepted_prompt_tokens"] else "-"
    counts = (f"{row[k]:,}" for k in ("rejected", "hit_tokens"))
    return (f"{n:,}", gib, *counts, rate, f"{row['evictions']:,}")


def _draw(out: Path, trace: str, blocked, results, policy, model, token_bytes) -> Path:
    from jaxmem.report.hits import hit_figure

    out.mkdir(parents=True, exist_ok=True)
    exact = [(r["capacity_blocks"], r["hit_rate"]) for r in results if r["hit_rate"] >= 0]
    title = Path(trace).name + (f", {model}" if model else "")
    label = f"exact replay, {policy}, responses included"
    hit_figure(
        out / "hit_rate.png", reuse.curve(blocked), exact, title=title, exact_label=label,
        token_bytes=token_bytes, devices=_devices(model) if model else None,
    )  # fmt: skip
    return out / "hit_rate.png"


def _devices(model: str) -> dict[str, float]:
    """Bytes that a model's weights leave on every GPU, node and PIM device that holds them."""
    from jaxmem.devices import dram, node

    weight = float(jm.llm.weight_bytes(jm.llm.layer_table(jm.llm.load(model))))
    found = {}
    for name in jm.devices.names("gpu"):
        found[name] = float(jm.devices.load(name).hbm_bytes) - weight
    for name in jm.devices.names("node"):
        one = jm.devices.load(name)
        memory = float(one.n_gpu) * float(node.hbm_bytes(one) + node.flash_bytes(one))
        found[name] = memory - weight
    for name in jm.devices.names("pim"):  # weights stay on the host
        found[name] = float(dram.capacity_bytes(jm.devices.load(name)))
    return {name: left for name, left in found.items() if left > 0}
