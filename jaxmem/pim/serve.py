"""Decode on a host with PIM memory, in closed form: attention in the banks, the rest on the host.

Placement becomes a load per channel (pim/layout.py), a load becomes cycles (pim/timing.py); the
host's projections, FFN and head come from xpu/step.py. The closed form covers the policy space but
for orders other than Ch-C, which wait for the simulator; those and mixes of fields that contradict
each other are `invalid`.
"""

import jax.numpy as jnp

from jaxmem.core import relax
from jaxmem.core.design import Leaf
from jaxmem.core.metrics import LIMITS, mask
from jaxmem.core.program import pointwise
from jaxmem.core.solve import Constraint, largest_batch
from jaxmem.devices.dram import row_bursts
from jaxmem.llm import Parallel, kind_of, kv_bytes, weight_bytes
from jaxmem.pim import energy, layout, occupancy, timing
from jaxmem.pim import policy as policies
from jaxmem.pim.design import Design, PimMetrics
from jaxmem.pim.policy import ORDER, V_WRITE
from jaxmem.serving import Decode, Serve
from jaxmem.serving.workload import context_tokens
from jaxmem.xpu import hbm, step

PARTS = ("k_write", "v_write", "commit", "qk", "sv", "prefill_write")


@pointwise
def evaluate(design: Design, workload: Decode | Serve) -> PimMetrics:
    """What a PIM system achieves on a decode workload.

    Args:
        design: device, model, runtime and granules.
        workload: `Decode` for a given batch and context, `Serve` for the largest batch under an
            objective; then a prompt's writes are spread over its response's steps.

    Returns:
        `PimMetrics`; infeasible points are NaN with a `limit`. `parts` holds seconds of a step:
        PIM's k_write, v_write, commit, qk, sv, prefill_write, the host's host, and the time that
        overlaps, as a negative part.

    Gradient: relaxed through counts and through the batch search; exact elsewhere.
    Source: research/patton.md section 5, research/aim.md section 6.

    Example:
        >>> import jaxmem as jm
        >>> d = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b",
        ...                          expected_run_blocks=64)
        >>> m = evaluate(d, jm.Decode.create(batch=32, context_tokens=2048))
        >>> round(float(m.parts["qk"] + m.parts["sv"]) / (32 * 0.5e-9))
        592896
    """
    point = (design, workload)
    if isinstance(workload, Decode):
        limit = jnp.int32(LIMITS["none"])
        for c in reversed(_FITS):
            is_met = c.quantity(point, workload.batch) <= c.bound(point)
            limit = jnp.where(is_met, limit, c.limit)
        return _metrics(design, workload, workload.batch, limit == 0, limit)
    batch, limit = largest_batch((*_FITS, _IN_TIME), point, workload.max_batch)
    runs = batch >= 1
    return _metrics(design, workload, relax.where(runs, batch, 1.0), runs, limit)


def pim_time(design: Design, workload: Decode | Serve, batch: Leaf):
    """Seconds and joules of one step's PIM work by cause, and rows opened over all channels."""
    kinds = range(design.llm.n_layer.shape[-1])
    of_kind = (_kind_time(design, workload, batch, kind_of(design.llm, kind)) for kind in kinds)
    return relax.once(relax.total(of_kind))


def _kind_time(design, workload, batch, layer):
    """`pim_time` of all layers of one kind."""
    device = design.device
    issue = design.policy.write_issue
    how = design.policy.v_write
    keeps_open = (how != V_WRITE["direct"]) & (how != V_WRITE["host"])
    s = relax.once(layout.shape(design, layer))
    n_token = relax.minimum(context_tokens(workload), layer.window_tokens)
    in_pim = relax.where(design.policy.v_write == V_WRITE["host"], 0.0, 1.0)
    repeat = in_pim * layer.n_layer * s.n_round * jnp.sign(layer.kv_bytes_token)
    # Channels at work, idle ones aside: the heads of a layer over its rounds, each with the mean of
    # the load that the fullest has.
    turns = layout.requests_in_turn(s, batch)
    uneven = layout.imbalance(design, s, batch, n_token)
    n_channel = s.ch_per_head * layer.n_kv / s.n_round * relax.divide(batch, turns, 1.0)
    # One decoder issues for every channel of every head of the layer.
    decoder = relax.minimum(n_channel, device.n_channel)

    qk = layout.scale(layout.query_key(design, s, n_token), turns * uneven)
    sv = layout.scale(layout.score_value(design, s, n_token), turns * uneven)
    k_write = layout.key_write(design, s, batch)
    v_write = layout.value_write(design, s, batch)
    commit = layout.commit(design, s, batch)
    cycle = {
        "qk": timing.mac_cycles(qk, device),
        "sv": timing.mac_cycles(sv, device),
        "k_write": timing.write_cycles(k_write, device),
        "v_write": timing.value_write_cycles(v_write, device, issue, keeps_open, decoder),
        "commit": timing.commit_cycles(commit, device, issue, decoder),
        "prefill_write": 0.0,
    }
    channel_j = {
        "qk": energy.mac_j(qk, device),
        "sv": energy.mac_j(sv, device),
        "k_write": energy.bank_write_j(k_write, device),
        "v_write": relax.where(
            how == V_WRITE["burst"],
            energy.bank_write_j(v_write, device),
            energy.all_bank_write_j(v_write, device),
        ),
        "commit": energy.copy_j(commit, device),
        "prefill_write": 0.0,
    }
    channel_j["qk"], channel_j["sv"] = channel_j["qk"] / uneven, channel_j["sv"] / uneven
    cycle, channel_j = relax.once((cycle, channel_j))
    rows = (qk.n_miss + sv.n_miss + sv.n_extra_row) / uneven
    rows = rows + k_write.n_write_row + v_write.n_write_row + commit.n_bank_row
    if isinstance(workload, Serve):
        prompt = relax.minimum(workload.input_tokens, layer.window_tokens)
        for load in layout.prefill_write(design, s, prompt):
            times = batch / workload.output_tokens
            cycle["prefill_write"] += times * timing.write_cycles(load, device)
            channel_j["prefill_write"] += times * energy.bank_write_j(load, device)
            rows = rows + times * load.n_bank_row
    second = {name: repeat * cycle[name] * device.clock_s for name in PARTS}
    joule = {name: repeat * n_channel * channel_j[name] for name in PARTS}
    return second, joule, repeat * n_channel * rows


def host_time(design: Design, workload: Decode | Serve, batch: Leaf):
    """The host's share of one decode step: projections, FFN or experts, head.

    The KV cache too, where the policy leaves it there.
    """
    host = design.device.host
    alone = Parallel(tp=1.0, dp=1.0, ep=1.0, spreads_weights=0)
    is_host = design.policy.v_write == V_WRITE["host"]
    context = relax.where(is_host, context_tokens(workload), 0.0)
    return step(design.llm, host, alone, batch, context, n_request=batch, memory=hbm(host))


def latency_s(design: Design, workload: Decode | Serve, batch: Leaf) -> Leaf:
    """Seconds of one decode step of `batch` requests."""
    second, _, _ = pim_time(design, workload, batch)
    return sum(_parts(design, second, host_time(design, workload, batch)).values())


def _parts(design, second, host):
    host_s = sum(host.parts.values())
    pim_s = sum(second.values())
    overlapped = design.policy.overlap * relax.minimum(host_s, pim_s)
    return {**second, "host": host_s, "overlap": -overlapped}


def _needs(point, batch):
    design, workload = point
    s, _ = layout.layers(design)
    batch = relax.ceil(batch / s.n_home) * s.n_home
    batch = relax.where(design.policy.v_write == V_WRITE["host"], 0.0, batch)
    return occupancy.granules_needed(design, s, batch, context_tokens(workload))


def _has(point):
    return 0.0


def _spare(point, batch):
    """Granules needed less those that there are beside the Commit Zone: must not exceed 0."""
    design, _ = point
    s, n_layer = layout.layers(design)
    return _needs(point, batch) - occupancy.n_granule(design, s, n_layer, batch)


def _host_bytes(point, batch):
    design, workload = point
    is_host = design.policy.v_write == V_WRITE["host"]
    kv = batch * kv_bytes(design.llm, context_tokens(workload))
    return weight_bytes(design.llm) + relax.where(is_host, kv, 0.0)


def _is_unmodelled(point, batch):
    policy = point[0].policy
    is_known = (policy.k_order == ORDER["ch_c_r"]) & (policy.v_order == ORDER["ch_c_r"])
    for _, _, is_met in policies.conflicts(policy):
        is_known &= ~is_met
    return _broken(~is_known, batch)


def _is_unlaid(point, batch):
    """Infinite where the granules cannot be formed: MLA, blocks of a wrong size, C too large."""
    design = point[0]
    device, layer = design.device, layout.kv_kind(design.llm)
    s = layout.shape(design, layer)
    element_burst = device.burst_bytes / layer.kv_element_bytes
    quantum = jnp.maximum(device.n_bank, element_burst)
    is_bad = (layer.is_mla > 0) | (layer.kv_bytes_token <= 0)
    # A remainder would be computed lane by lane, a hundred times as slow.
    is_bad |= s.block_tokens != quantum * jnp.floor(s.block_tokens / quantum)
    is_bad |= design.ch_per_head > device.n_channel
    is_bad |= s.key_groups > s.key_groups_row * s.value_rows
    is_bad |= s.value_bursts > row_bursts(device)
    return _broken(is_bad, batch)


def _over_cap(point, batch):
    design, workload = point
    over = context_tokens(workload) > design.policy.max_context_tokens
    return _broken(over, batch)


def _broken(is_bad, batch):
    return jnp.where(is_bad & (batch > 0), jnp.inf, 0.0 * batch)


_FITS = (
    Constraint(_is_unmodelled, _has, LIMITS["invalid"]),
    Constraint(_is_unlaid, _has, LIMITS["layout"]),
    Constraint(_over_cap, _has, LIMITS["context_cap"]),
    Constraint(_host_bytes, lambda point: point[0].device.host.hbm_bytes, LIMITS["capacity"]),
    Constraint(_spare, _has, LIMITS["capacity"]),
)
_IN_TIME = Constraint(
    lambda point, batch: latency_s(*point, batch),
    lambda point: point[1].slo_s,
    LIMITS["slo"],
)


def _metrics(design, workload, batch, feasible, limit) -> PimMetrics:
    device = design.device
    second, joule, n_activation = pim_time(design, workload, batch)
    host = host_time(design, workload, batch)
    parts = _parts(design, second, host)
    total_s = sum(parts.values())
    pim_s = sum(second.values())
    gpu = device.host
    core_w = gpu.tdp_w - gpu.hbm_bytes_per_s * gpu.hbm_j_per_byte
    joule = {
        **joule,
        "standby": energy.standby_j(device, pim_s, total_s - pim_s),
        "host": core_w * parts["host"] + (host.weight_bytes + host.kv_bytes) * gpu.hbm_j_per_byte,
    }
    energy_j = sum(joule.values())
    s, n_layer = layout.layers(design)
    n_block = relax.floor(context_tokens(workload) / s.block_tokens)
    metrics = PimMetrics(
        latency_s=total_s,
        tokens_per_s=batch / total_s,
        tokens_per_s_per_gpu=batch / total_s,
        energy_j=energy_j,
        tokens_per_j=batch / energy_j,
        batch=batch,
        capacity_tokens=occupancy.capacity_tokens(design, s, n_layer, batch),
        feasible=feasible,
        limit=limit,
        parts=parts,
        energy_parts=joule,
        row_activations=n_activation,
        hit_rate=jnp.nan * batch,
        run_blocks=layout.run_blocks(design, s, relax.at_least(n_block, 1.0)),
    )
    return mask(metrics, feasible)
