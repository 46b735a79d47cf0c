"""Evaluate a whole space, chunk by chunk, into a labelled dataset.

Every point runs through the one program of `core.program`, so a row equals the scalar call. Chunks
are independent; two threads keep two cores busy, and memory stays bounded by the chunk.
"""

import collections
import concurrent.futures
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxmem.core import design as records
from jaxmem.core.metrics import LIMITS
from jaxmem.core.program import N_LANE, Axis, Program
from jaxmem.explore import space as spaces

CHUNK_POINTS = 32 * N_LANE
"""Points a call: large enough to hide dispatch, small enough to show progress."""


def sweep(
    fn: Callable,
    design: Any,
    workload: Any,
    space: Mapping[str, Any],
    *,
    n_sample: int | None = None,
    seed: int = 0,
    chunk_points: int = CHUNK_POINTS,
    progress: Callable[[int, int], None] | None = None,
):
    """Evaluate `fn` at every point of a space.

    Args:
        fn: `jm.pim.evaluate`, `jm.hbf.evaluate`, or any pure function of (design, workload) that
            returns a record.
        design: the base design.
        workload: the base workload.
        space: values by field path; fields of the workload begin with `workload.`.
        n_sample: draw so many points from the space instead of taking its grid.
        seed: of the draws.
        chunk_points: points evaluated at a time.
        progress: called with (points done, points in all) after every chunk.

    Returns:
        An `xarray.Dataset` with one dimension a field (or `sample`), a variable a metric, its unit
        and meaning in attrs.

    Raises:
        InputError: the space does not fit the design.

    Example:
        >>> import jaxmem as jm
        >>> d = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b")
        >>> ds = sweep(jm.pim.evaluate, d, jm.Decode.create(batch=8), {"ch_per_head": [1, 4]})
        >>> ds.latency_s.dims, ds.latency_s.attrs["unit"]
        (('ch_per_head',), 's')
    """
    bound = spaces.bind(design, workload, space)
    if n_sample is None:
        axes, shape = spaces.grid(bound)
        dims = tuple(f.path for f in bound.field)
        coords = {f.path: (f.path, _coordinate(f)) for f in bound.field}
    else:
        columns = spaces.sample(bound, n_sample, seed)
        axes, shape, dims = (spaces.points(bound, columns),), (n_sample,), ("sample",)
        coords = {
            f.path: ("sample", c if f.range is not None else np.asarray(f.labels)[c])
            for f, c in zip(bound.field, columns, strict=True)
        }
    n_point = int(np.prod(shape, dtype=np.int64))
    rows: Any = None
    done = 0
    for first, part in evaluated(fn, bound.base, axes, n_point, chunk_points):
        if rows is None:
            rows = jax.tree.map(lambda x: np.empty((n_point, *x.shape[1:]), x.dtype), part)
        jax.tree.map(
            lambda row, x, at=first: row.__setitem__(slice(at, at + len(x)), x), rows, part
        )
        done += len(jax.tree.leaves(part)[0])
        if progress:
            progress(done, n_point)
    return dataset(rows, dims, shape, coords, fn)


def evaluated(
    fn: Callable, base: tuple, axes: Sequence[Axis], n_point: int, chunk_points: int
) -> Iterator[tuple[int, Any]]:
    """Chunks of results in order, each with the number of its first point."""
    chunk_points = max(1, min(chunk_points, n_point))
    n_tile = -(-chunk_points // N_LANE)
    n_worker = min(2, os.cpu_count() or 1)
    starts = iter(range(0, n_point, chunk_points))
    program = Program(fn, base, axes)

    def work(start):
        size = min(chunk_points, n_point - start)
        return jax.tree.map(lambda x: x[:size], program.run(start, n_tile))

    # The first chunk compiles the program alone; the others then share it.
    yield 0, work(next(starts))
    with concurrent.futures.ThreadPoolExecutor(n_worker) as pool:
        queue = collections.deque((s, pool.submit(work, s)) for s in itertools.islice(starts, 4))
        try:
            while queue:
                first, future = queue.popleft()
                part = future.result()
                queue.extend((s, pool.submit(work, s)) for s in itertools.islice(starts, 1))
                yield first, part
        finally:
            for _, future in queue:
                future.cancel()


def dataset(
    rows: Any, dims: tuple[str, ...], shape: tuple[int, ...], coords: Mapping, fn: Callable
):
    """Results [point] as an `xarray.Dataset`; nested parts are named `parts.qk` and so on."""
    import xarray

    variables = {}
    for name, spec in records.specs(rows).items():
        value = getattr(rows, name)
        children = value.items() if isinstance(value, dict) else [("", value)]
        unit = "s" if name == "parts" else "J" if name == "energy_parts" else spec.unit
        for child, column in children:
            full = f"{name}.{child}" if child else name
            attrs = {"unit": unit, "long_name": spec.doc}
            variables[full] = (dims, column.reshape(shape), attrs)
    attrs = {"model": f"{fn.__module__}.{getattr(fn, '__qualname__', fn)}", "limits": list(LIMITS)}
    return xarray.Dataset(variables, coords=coords, attrs=attrs)


def _coordinate(f: spaces.Field) -> np.ndarray:
    if f.is_number:
        return np.asarray([float(v) for v in f.values])
    return np.asarray([str(label) for label in f.labels])


def best(ds: Any, *, minimize: str | None = None, maximize: str | None = None, subject_to=()):
    """The best feasible row of a dataset that meets its constraints, exhaustively.

    Args:
        ds: what `sweep` returned.
        minimize: the metric to make small.
        maximize: or the metric to make large.
        subject_to: constraints by `at_most` and `at_least`.

    Returns:
        The row as a dataset without dimensions, or None where no row qualifies.
    """
    metric, sign = (minimize, 1.0) if minimize else (maximize, -1.0)
    score = sign * ds[metric].values.astype(float)
    keep = ds["feasible"].values.astype(bool) & np.isfinite(score)
    for bound in subject_to:
        keep &= bound.sign * ds[bound.metric].values <= bound.sign * bound.value
    if not keep.any():
        return None
    index = np.unravel_index(np.argmin(np.where(keep, score, np.inf)), score.shape)
    return ds.isel(dict(zip(ds[metric].dims, (int(i) for i in index), strict=True)))
