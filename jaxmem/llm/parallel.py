"""Degrees of parallelism: tensor, data, expert and pipeline."""

from typing import Any, Self

import jax.numpy as jnp

from jaxmem.core.design import Leaf, build, count, design, flag


@design
class Parallel:
    """How a model is spread over GPUs; a degree of 0 follows FlashAccel's Table II."""

    tp: Leaf = count("tensor-parallel degree; 0 = by rule", low=0.0, default=0)
    dp: Leaf = count("data-parallel replicas of attention; 0 = by rule", low=0.0, default=0)
    ep: Leaf = count("GPUs that the experts are spread over; 0 = by rule", low=0.0, default=0)
    pp: Leaf = count("pipeline stages that the layers are spread over", default=1)
    spreads_weights: Leaf = flag(
        "weights that DP replicates are spread over the replicas, as far as capacity goes",
        default=1,
        source="the reading under which Qwen3-480B fits 8 H200 (FlashAccel VII-B, 120 GB a GPU)",
    )

    @classmethod
    def create(cls, **values: Any) -> Self:
        """A checked `Parallel`.

        Raises:
            InputError: a field is unknown or out of bounds.

        Example:
            >>> int(Parallel.create(tp=8).tp), int(Parallel.create().dp)
            (8, 0)
        """
        return build(cls, values)


def resolve(parallel: Parallel, table: Any, n_gpu: Leaf) -> Parallel:
    """Degrees with the rule filled in: dense models TP, models with experts DP attention and EP.

    Args:
        parallel: degrees, 0 where the rule decides.
        table: the model's `LayerTable`.
        n_gpu: GPUs of the node; the rule fills what the pipeline stages leave of them.

    Gradient: exact in `n_gpu` where the rule decides.
    Source: FlashAccel Table II (arXiv 2607.10186v1).

    Example:
        >>> from jaxmem.llm import load, table
        >>> by_rule = resolve(Parallel.create(), table(load("mixtral-8x7b")), 8.0)
        >>> float(by_rule.tp), float(by_rule.dp), float(by_rule.ep)
        (1.0, 8.0, 8.0)
    """
    n_expert = sum(table.n_expert[..., kind] for kind in range(table.n_expert.shape[-1]))
    has_expert = jnp.greater(n_expert, 0)
    n_gpu = n_gpu / parallel.pp

    def by_rule(given, dense, sparse):
        return jnp.where(jnp.greater(given, 0), given, jnp.where(has_expert, sparse, dense))

    return Parallel(
        tp=by_rule(parallel.tp, n_gpu, 1.0),
        dp=by_rule(parallel.dp, 1.0, n_gpu),
        ep=by_rule(parallel.ep, 1.0, n_gpu),
        pp=parallel.pp,
        spreads_weights=parallel.spreads_weights,
    )
