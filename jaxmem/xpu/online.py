"""Tokens and first tokens of a served model under load, in closed form.

A closed loop of requests, each replaced when it ends: a decode step of all of them, the others'
prompts that are computed between a request's tokens, and those that a new prompt waits for. A
prompt is one pass, by itself or within a step of the others; what an engine does otherwise (chunks,
batches of prompts) is in its `prefill_share` and `queue_share`. Left out: arrivals in the open,
preemption, speculative decoding.
"""

from typing import Any

from jaxmem.core import relax
from jaxmem.core.design import Leaf, leaf, part, record
from jaxmem.devices.engine import Engine, tuned
from jaxmem.devices.node import Node
from jaxmem.llm.parallel import Parallel
from jaxmem.llm.table import LayerTable
from jaxmem.xpu.step import EXPERT_READ, hbm, step, total_s


@record
class Online:
    """What a request of a loaded server sees, means over requests."""

    tpot_s: Leaf = leaf("time of an output token after the first", unit="s")
    ttft_s: Leaf = leaf("time to the first token", unit="s")
    prefill_s: Leaf = leaf("time of one prompt's pass by itself", unit="s")
    parts: dict[str, Any] = part("seconds of an output token by cause")


def online(
    table: LayerTable,
    node: Node,
    parallel: Parallel,
    engine: Engine,
    *,
    n_request: Leaf,
    input_tokens: Leaf,
    output_tokens: Leaf,
    is_apart: Leaf = 0.0,
) -> Online:
    """Time to the first token and time per output token of a served model.

    Args:
        table: the whole model, not sharded.
        node: GPUs and links, with their own rates; weights and KV cache in HBM.
        parallel: resolved degrees.
        engine: what the serving software makes of them.
        n_request: requests in flight on the node, evenly over the dp replicas.
        input_tokens: of a prompt.
        output_tokens: of a request.
        is_apart: 1 where prompts are computed by other GPUs (disaggregated), 0 in the same steps.

    Gradient: exact where the step is.
    Source: a step's operators (research/flashaccel.md section 3); the mixing is counted: while a
        request decodes, every other one ends once and its successor's prompt is computed.

    Example:
        >>> from jaxmem import devices
        >>> from jaxmem.llm import load, resolve
        >>> from jaxmem.llm import table as table_of
        >>> rows, node = table_of(load("llama3.1-70b")), devices.load("8xH200")
        >>> found = online(rows, node, resolve(Parallel.create(), rows, 8), Engine.create(),
        ...                n_request=16.0, input_tokens=1024.0, output_tokens=1024.0)
        >>> 0.004 < float(found.tpot_s) < 0.02
        True
    """
    node = tuned(node, engine)
    memory = hbm(node)

    def seconds(n_token: Leaf, cached: Leaf, n: Leaf) -> Any:
        return step(
            table, node, parallel, n_token, cached, n_request=n, memory=memory,
            expert_read=EXPERT_READ["touched"], engine=engine,
        )  # fmt: skip

    context = input_tokens + output_tokens / 2
    decode = seconds(n_request, context, n_request)
    alone = seconds(input_tokens, 0.0, 1.0)
    both = seconds(n_request + input_tokens, context, n_request + 1.0)
    prefill_s = total_s(alone)
    # What a prompt adds to a step of the others: its attention, and the rest of the joint step.
    joint_s = total_s(both) - both.parts["kv"] + decode.parts["kv"] + alone.parts["kv"]
    added_s = joint_s - total_s(decode)
    others = relax.maximum(n_request - 1.0, 0.0)
    each_s = relax.where(engine.is_mixed > 0, added_s, prefill_s)
    mixed_s = engine.prefill_share * others / output_tokens * each_s * (1.0 - is_apart)
    parts = {**decode.parts, "prompts": mixed_s}
    return Online(
        tpot_s=total_s(decode) + mixed_s,
        ttft_s=engine.first_s + prefill_s * (engine.own_passes + engine.queue_share * others),
        prefill_s=prefill_s,
        parts=parts,
    )
