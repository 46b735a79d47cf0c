"""Decode serving on GPUs with flash, in closed form: the largest batch and what it achieves.

Placement becomes a load (hbf/layout.py), a load becomes time (hbf/timing.py), and one transformer
step (xpu/step.py) adds them up. The batch is the largest that the latency objective, the memory
and the HBM buffer allow (FlashAccel VII-B), found exactly by integer bisection.
"""

import dataclasses

import jax.numpy as jnp

from jaxmem.core import relax
from jaxmem.core.design import Leaf
from jaxmem.core.metrics import LIMITS, mask
from jaxmem.core.program import pointwise
from jaxmem.core.solve import Constraint, largest_batch
from jaxmem.devices.node import hbm_bytes, n_plane
from jaxmem.hbf import energy, layout, occupancy, timing
from jaxmem.hbf.design import Design, HbfMetrics
from jaxmem.llm import kv_bytes, kv_bytes_token, resolve, shard
from jaxmem.serving import Decode, Serve
from jaxmem.serving.workload import context_tokens
from jaxmem.xpu.step import StepTime, step, total_s


@pointwise
def evaluate(design: Design, workload: Decode | Serve) -> HbfMetrics:
    """What a node with flash (or a plain GPU node) achieves on a decode workload.

    Args:
        design: the node, the model and the layout.
        workload: `Decode` for a given batch, `Serve` for the largest one under an objective. The
            batch is a multiple of the data-parallel degree.

    Returns:
        `HbfMetrics`; infeasible points are NaN with a `limit`.

    Gradient: relaxed through counts and through the batch search (implicit condition); exact
        elsewhere.
    Source: FlashAccel VII-B; research/flashaccel.md section 3.

    Example:
        >>> import jaxmem as jm
        >>> d = jm.hbf.Design.create(device="8xH200", llm="llama3.1-405b")
        >>> float(evaluate(d, jm.Serve.create(input_tokens=15000, output_tokens=6000)).batch)
        29.0
    """
    parallel = resolve(design.parallel, design.llm, design.device.n_gpu)
    design = dataclasses.replace(design, parallel=parallel)
    if isinstance(workload, Decode):
        local = relax.ceil(workload.batch / parallel.dp)
        limit = _violated(design, workload, local)
        return _metrics(design, workload, local, workload.batch, limit == 0, limit)
    top = relax.floor(workload.max_batch / parallel.dp)
    local, limit = largest_batch((*_FITS, _IN_TIME), (design, workload), top)
    runs = local >= 1
    local = relax.where(runs, local, 1.0)
    return _metrics(design, workload, local, local * parallel.dp, runs, limit)


def step_time(design: Design, workload: Decode | Serve, local_batch: Leaf) -> StepTime:
    """One decode step of `local_batch` requests on each data-parallel replica, by cause."""
    parallel = design.parallel
    n_token = local_batch * parallel.dp
    time = step(
        design.llm,
        design.device,
        parallel,
        n_token,
        context_tokens(workload),
        n_request=n_token,
        memory=timing.memory(design),
        expert_read=design.expert_read,
    )
    written = local_batch * kv_written_bytes(design, workload)
    return dataclasses.replace(
        time, parts={**time.parts, "write_back": timing.program_s(design, written)}
    )


def kv_written_bytes(design: Design, workload: Decode | Serve) -> Leaf:
    """Bytes that a decoded token makes a GPU write to flash; the prompt's KV cache is its share.

    Source: FlashAccel VII-D: decode writes one token, and input/output tokens come from prefill.
    """
    token = kv_bytes_token(shard(design.llm, design.parallel))
    if isinstance(workload, Decode):
        return token
    return token * (1 + workload.input_tokens / workload.output_tokens)


def _violated(design: Design, workload: Decode, local_batch: Leaf):
    """Code of the first constraint that a given batch breaks, 0 for none."""
    limit = jnp.int32(LIMITS["none"])
    for c in reversed(_FITS):
        is_met = c.quantity((design, workload), local_batch) <= c.bound((design, workload))
        limit = jnp.where(is_met, limit, c.limit)
    return limit


def _held(point, batch):
    design, workload = point
    rank = shard(design.llm, design.parallel)
    context = context_tokens(workload)
    return occupancy.held_bytes(design, rank, design.parallel, batch, context)


def _buffered(point, batch):
    design, workload = point
    rank = shard(design.llm, design.parallel)
    return occupancy.hbm_buffer_bytes(design, rank, batch, context_tokens(workload))


def _is_consistent(point, batch):
    """0 where the megaplanes divide the planes and the degrees the GPUs, else more than allowed."""
    design, _ = point
    planes, node = n_plane(design.device), design.device
    is_whole = planes == design.planes_per_megaplane * jnp.floor(
        planes / design.planes_per_megaplane
    )
    fits = design.parallel.tp * design.parallel.dp * design.parallel.pp == node.n_gpu
    fits &= design.parallel.ep <= node.n_gpu
    is_bad = ~(is_whole & fits)
    return jnp.where(is_bad & (batch > 0), jnp.inf, 0.0 * batch)


_FITS = (
    Constraint(_is_consistent, lambda point: 0.0, LIMITS["invalid"]),
    Constraint(_held, lambda point: occupancy.capacity_bytes(point[0]), LIMITS["capacity"]),
    Constraint(_buffered, lambda point: hbm_bytes(point[0].device), LIMITS["hbm_buffer"]),
)
_IN_TIME = Constraint(
    lambda point, batch: total_s(step_time(*point, batch)),
    lambda point: point[1].slo_s,
    LIMITS["slo"],
)


def _metrics(design, workload, local_batch, batch, feasible, limit) -> HbfMetrics:
    node, parallel = design.device, design.parallel
    rank = shard(design.llm, parallel)
    context = context_tokens(workload)
    time = step_time(design, workload, local_batch)
    latency_s = total_s(time)
    tokens_per_s = batch / latency_s

    has_flash = node.n_stack > 0
    read = time.weight_bytes + time.kv_bytes
    replicated = _replicated_bytes(design, rank, local_batch, context)
    flash_read = relax.where(has_flash, read - replicated, 0.0)
    gpu_j = energy.step_j(design, latency_s, flash_read, read - flash_read)
    node_j = {name: node.n_gpu * joule for name, joule in gpu_j.items()}
    energy_j = sum(node_j.values())

    written = kv_written_bytes(design, workload) * local_batch / latency_s
    write_bytes_per_s = relax.where(has_flash, written, 0.0)
    free = occupancy.capacity_bytes(design) - occupancy.weights_held_bytes(rank, parallel)
    per_token = relax.divide(kv_bytes(rank, context), context, 1.0)
    metrics = HbfMetrics(
        latency_s=latency_s,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=tokens_per_s / node.n_gpu,
        energy_j=energy_j,
        tokens_per_j=batch / energy_j,
        batch=batch,
        capacity_tokens=relax.floor(relax.divide(free, per_token, jnp.nan)) * parallel.dp,
        feasible=feasible,
        limit=limit,
        parts=time.parts,
        energy_parts=node_j,
        write_bytes_per_s=write_bytes_per_s,
        lifetime_s=energy.lifetime_s(design, write_bytes_per_s),
        hbm_buffer_bytes=occupancy.hbm_buffer_bytes(design, rank, local_batch, context),
        area_mm2=energy.area_mm2(design),
        power_w=energy_j / latency_s / node.n_gpu,
    )
    return mask(metrics, feasible)


def _replicated_bytes(design, rank, local_batch, context):
    """Bytes that a step reads from replicas in HBM, over all layers."""
    total = 0.0
    for kind in range(rank.n_layer.shape[-1]):
        cached = relax.minimum(context, rank.window_tokens[..., kind])
        layer_kv = local_batch * rank.kv_bytes_token[..., kind] * cached
        total += rank.n_layer[..., kind] * layout.kv_load(design, layer_kv).replicated_bytes
    return total
