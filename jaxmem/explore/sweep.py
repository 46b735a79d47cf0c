"""Evaluate a whole space, chunk by chunk, into a labelled dataset.

Every point runs through the one program of `core.program`, so a row equals the scalar call. Chunks
are independent; two threads keep two cores busy, and memory stays bounded by the chunk.
"""

import collections
import concurrent.futures
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxmem.core import design as records
from jaxmem.core.metrics import LIMITS
from jaxmem.core.program import N_LANE, Axis, Program, blank, unwrapped
from jaxmem.explore import space as spaces
from jaxmem.explore import store

CHUNK_POINTS = 4 * N_LANE
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
    out: str | Path | None = None,
    resume: bool = False,
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
        out: a folder (Zarr) that chunks are written to as they are done.
        resume: continue a sweep that stopped; only missing chunks are evaluated.

    Returns:
        An `xarray.Dataset` with one dimension a field (or `sample`), a variable a metric, its unit
        and meaning in attrs.

    Raises:
        InputError: the space does not fit the design, or `out` is not this sweep's.

    Example:
        >>> import jaxmem as jm
        >>> d = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b")
        >>> ds = sweep(jm.pim.evaluate, d, jm.Decode.create(batch=8), {"ch_per_head": [1, 4]})
        >>> ds.latency_s.dims, ds.latency_s.attrs["unit"]
        (('ch_per_head',), 's')
    """
    bound = spaces.bind(design, workload, space)
    axes, layout = _layout(fn, bound, n_sample, seed)
    n_point = int(np.prod(layout["shape"], dtype=np.int64))
    chunk_points = max(1, min(chunk_points, n_point))
    if out is not None:
        key = store.key_of(fn, jax.tree.leaves(bound.base), layout["coords"])
        target = store.Store(out, key, layout, n_point, chunk_points, resume=resume)
        starts, chunk_points = target.missing(), target.chunk_points
    else:
        target, starts = None, list(range(0, n_point, chunk_points))
    done = n_point - sum(min(chunk_points, n_point - first) for first in starts)
    whole: Any = None
    for first, part in evaluated(
        fn, bound.base, axes, n_point, chunk_points, starts, keeps=target is None
    ):
        if target is not None:
            part = columns(part)
            target.write(first, part)
            done += len(next(iter(part.values())))
        else:
            whole = part
            done = min(first + chunk_points, n_point)
        if progress:
            progress(done, n_point)
    return store.read(target.path) if target is not None else _dataset(columns(whole), layout)


def evaluated(
    fn: Callable,
    base: tuple,
    axes: Sequence[Axis],
    n_point: int,
    chunk_points: int,
    starts: Sequence[int],
    *,
    keeps: bool = False,
) -> Iterator[tuple[int, Any]]:
    """Chunks of results in order, each with the number of its first point.

    With `keeps`, the results of all points so far instead: chunks fill one array a metric, where
    they are computed, for new memory costs as much as the points in it.
    """
    n_worker = min(2, os.cpu_count() or 1)
    program = Program(fn, base, axes)
    todo = iter(starts)
    whole: Any = None

    def work(start):
        end = min(start + chunk_points, n_point)
        if whole is None:
            return program.run(start, end - start)
        return program.run(start, end - start, jax.tree.map(lambda x: x[start:end], whole))

    # The first chunk compiles the program alone; the others then share it.
    for first in itertools.islice(todo, 1):
        part = work(first)
        if keeps:
            whole = blank(part, n_point)
            for column, begun in zip(jax.tree.leaves(whole), jax.tree.leaves(part), strict=True):
                column[: len(begun)] = begun
        yield first, whole if keeps else part
    with concurrent.futures.ThreadPoolExecutor(n_worker) as pool:
        queue = collections.deque((s, pool.submit(work, s)) for s in itertools.islice(todo, 4))
        try:
            while queue:
                first, future = queue.popleft()
                part = future.result()
                queue.extend((s, pool.submit(work, s)) for s in itertools.islice(todo, 1))
                yield first, whole if keeps else part
        finally:
            for _, future in queue:
                future.cancel()


def columns(metrics: Any) -> dict[str, np.ndarray]:
    """Every metric [point] by name; nested parts are named `parts.qk` and so on."""
    return {name: value for name, value, _ in _named(metrics)}


def _named(metrics: Any) -> Iterator[tuple[str, Any, dict[str, str]]]:
    """(name, value, attributes) of every metric."""
    for name, spec in records.specs(metrics).items():
        value = getattr(metrics, name)
        unit = "s" if name == "parts" else "J" if name == "energy_parts" else spec.unit
        attrs = {"unit": unit, "long_name": spec.doc}
        if isinstance(value, dict):
            yield from ((f"{name}.{child}", x, attrs) for child, x in value.items())
        else:
            yield name, value, attrs


def _layout(fn: Callable, bound: spaces.Space, n_sample: int | None, seed: int):
    """The axes of a sweep, and what its dataset will look like, in JSON's own types."""
    if n_sample is None:
        axes, shape = spaces.grid(bound)
        dims = [f.path for f in bound.field]
        coords = {f.path: (f.path, _coordinate(f)) for f in bound.field}
    else:
        drawn = spaces.sample(bound, n_sample, seed)
        axes, shape, dims = (spaces.points(bound, drawn),), (n_sample,), ["sample"]
        coords = {
            f.path: ("sample", _values(f, column))
            for f, column in zip(bound.field, drawn, strict=True)
        }
    with jax.enable_x64(True):
        metrics = jax.eval_shape(unwrapped(fn), *bound.base)
    layout = {
        "dims": dims,
        "shape": list(shape),
        "coords": coords,
        "variables": {name: attrs for name, _, attrs in _named(metrics)},
        "attrs": {
            "model": f"{fn.__module__}.{getattr(fn, '__qualname__', fn)}",
            "limits": list(LIMITS),
        },
    }
    return axes, layout


def _dataset(rows: Mapping[str, np.ndarray], layout: Mapping[str, Any]):
    import xarray

    dims, shape = layout["dims"], layout["shape"]
    variables = {
        name: (dims, column.reshape(shape), layout["variables"][name])
        for name, column in rows.items()
    }
    coords = {name: (dim, np.asarray(values)) for name, (dim, values) in layout["coords"].items()}
    return xarray.Dataset(variables, coords=coords, attrs=layout["attrs"])


def _coordinate(f: spaces.Field) -> list[Any]:
    return [float(v) for v in f.values] if f.is_number else [str(label) for label in f.labels]


def _values(f: spaces.Field, column: np.ndarray) -> list[Any]:
    if f.range is not None:
        return [float(v) for v in column]
    labels = _coordinate(f)
    return [labels[i] for i in column]


def removed(ds: Any) -> dict[str, int]:
    """How many points of a dataset cannot run, by what prevents it; most first."""
    codes = ds["limit"].values[~ds["feasible"].values.astype(bool)]
    number, count = np.unique(codes, return_counts=True)
    order = np.argsort(-count, kind="stable")
    return {ds.attrs["limits"][int(number[i])]: int(count[i]) for i in order}


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
