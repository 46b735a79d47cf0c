"""A sweep on disk: Zarr arrays filled chunk by chunk, with a manifest, so that it can be resumed.

Every metric is one array over flat point numbers, chunked as it is computed. A chunk counts as done
only when its mark is written, after its data; a run that is killed loses the chunk it was in and
nothing else. `read` gives the labelled dataset back.
"""

import hashlib
import importlib.metadata
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxmem.core.errors import InputError

DONE = "_done"
"""Array [chunk]: 1 where the chunk's data is complete."""


class Store:
    """A sweep's folder.

    Args:
        path: the folder, by custom ending in `.zarr`.
        key: what fixes the results: `key_of(...)`.
        layout: dims, shape, coords and attrs, for `read`.
        n_point: points in all.
        chunk_points: points a chunk.
        resume: continue what is there; without it an existing folder is refused.

    Raises:
        InputError: the folder exists, is no sweep, or is another one's.
    """

    def __init__(
        self,
        path: str | Path,
        key: str,
        layout: Mapping[str, Any],
        n_point: int,
        chunk_points: int,
        *,
        resume: bool,
    ) -> None:
        import zarr

        self.path, self.n_point = Path(path), n_point
        if self.path.exists() and not resume:
            raise InputError("out", str(path), "a folder that does not exist yet (or resume)")
        if self.path.exists():
            self.group: Any = _open(self.path, mode="r+")
            manifest = self.group.attrs.asdict()
            if manifest.get("key") != key:
                raise InputError("out", str(path), "the store of this very sweep, to resume it")
            chunk_points = int(manifest["chunk_points"])
        else:
            self.group = zarr.open_group(str(self.path), mode="w", zarr_format=3)
            self.group.attrs.update(
                {
                    "key": key,
                    "n_point": n_point,
                    "chunk_points": chunk_points,
                    "layout": json.dumps(layout),
                    **manifest_of(),
                }
            )
            n_chunk = -(-n_point // chunk_points)
            self.group.create_array(
                DONE, shape=(n_chunk,), chunks=(1,), dtype="uint8", fill_value=0
            )
        self.chunk_points = chunk_points

    def missing(self) -> list[int]:
        """First point of every chunk that is not done."""
        done = np.asarray(self.group[DONE][:])
        return [int(i) * self.chunk_points for i in np.flatnonzero(done == 0)]

    def write(self, first: int, columns: Mapping[str, np.ndarray]) -> None:
        """Write one chunk, then its mark."""
        for name, column in columns.items():
            if name not in self.group:
                self.group.create_array(
                    name,
                    shape=(self.n_point,),
                    chunks=(self.chunk_points,),
                    dtype=column.dtype,
                )
            self.group[name][first : first + len(column)] = column
        self.group[DONE][first // self.chunk_points] = 1


def read(path: str | Path):
    """The dataset of a finished sweep; points not yet done are an error.

    Raises:
        InputError: no such store, or one that is not complete.
    """
    import xarray

    group = _open(Path(path), mode="r")
    missing = int((np.asarray(group[DONE][:]) == 0).sum())
    if missing:
        raise InputError("store", str(path), f"a finished sweep ({missing} chunks are missing)")
    layout = json.loads(group.attrs["layout"])
    dims, shape = layout["dims"], layout["shape"]
    variables = {
        name: (dims, np.asarray(group[name][:]).reshape(shape), layout["variables"][name])
        for name in layout["variables"]
    }
    coords = {name: (dim, np.asarray(values)) for name, (dim, values) in layout["coords"].items()}
    return xarray.Dataset(variables, coords=coords, attrs=layout["attrs"])


def key_of(fn: Callable, leaves: Sequence[Any], coords: Mapping[str, Any]) -> str:
    """A digest of everything that fixes a sweep's results: model, base point, space, version."""
    digest = hashlib.sha256()
    digest.update(f"{fn.__module__}.{getattr(fn, '__qualname__', fn)}".encode())
    digest.update(importlib.metadata.version("jaxmem").encode())
    for leaf in leaves:
        digest.update(np.asarray(leaf, np.float64).tobytes())
    digest.update(json.dumps(coords, sort_keys=True).encode())
    return digest.hexdigest()


def manifest_of() -> dict[str, Any]:
    """What a result should say about how it was made."""
    import jax

    names = ("jaxmem", "jax", "jaxlib", "numpy", "zarr", "xarray")
    return {
        "versions": {name: importlib.metadata.version(name) for name in names},
        "device": str(jax.devices()[0].device_kind),
        "git": _revision(),
    }


def _revision() -> str:
    """Revision of the checkout that jaxmem runs from; empty where it is installed."""
    folder = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"],
            capture_output=True, text=True, timeout=5, check=False,
        )  # fmt: skip
    except OSError:
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def _open(path: Path, mode: Literal["r", "r+"]) -> Any:
    import zarr

    try:
        group = zarr.open_group(str(path), mode=mode)
        if DONE in group and "layout" in group.attrs:
            return group
    except (FileNotFoundError, ValueError, KeyError):
        pass
    raise InputError("store", str(path), "a folder that a sweep wrote")
