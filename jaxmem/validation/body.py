"""What a body of reference data is, and what checking one reports."""

import gzip
import math
import os
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from jaxmem.core.errors import InputError

REFERENCE = "JAXMEM_REFERENCE"
"""Names a folder of reference data with golden/, measured/ and traces/ in it."""


class Case(NamedTuple):
    """One checked case.

    Attributes:
        id: its name in the file.
        family: the group that it is reported in.
        is_exact: whether everything compared was equal.
        rel_error: |model / reference - 1| of its headline number; 0 where that is equal.
        signed: the same with its sign, where a family's bias is of interest; else NaN.
    """

    id: str
    family: str
    is_exact: bool
    rel_error: float
    signed: float = math.nan


class Note(NamedTuple):
    """Rows of the data that are no cases, and why.

    Attributes:
        reason: in a few words.
        n: how many.
    """

    reason: str
    n: int


class Body(NamedTuple):
    """A body of reference data that the model is held against.

    Attributes:
        name: what `jaxmem validate` calls it.
        doc: what it holds, and where it comes from.
        file: its path below the reference folder.
        check: from such a file (or folder), its cases, one by one, and notes on what is none.
    """

    name: str
    doc: str
    file: str
    check: Callable[[Path], Iterator[Case | Note]]


def find(body: Body) -> Path | None:
    """Where a body's data lies: below `JAXMEM_REFERENCE`, else in the package; None if nowhere."""
    folder = os.environ.get(REFERENCE)
    shipped = Path(str(resources.files("jaxmem.validation"))) / "data" / Path(body.file).name
    candidates = [shipped, shipped.with_name(f"{shipped.name}.gz")]
    if folder:
        candidates.insert(0, Path(folder) / body.file)
    return next((path for path in candidates if path.exists()), None)


def beside(folder: Path, name: str) -> Path | None:
    """A file that a case refers to: beside it, in the reference folder, or shipped; or gzipped."""
    folders = [folder, Path(str(resources.files("jaxmem.validation"))) / "data"]
    if os.environ.get(REFERENCE):
        folders.insert(1, Path(os.environ[REFERENCE]) / "golden")
    files = [f / n for f in folders for n in (name, f"{name}.gz")]
    return next((file for file in files if file.is_file()), None)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The non-empty lines of a text file, plain or gzipped, with their numbers.

    Raises:
        InputError: the file is missing or not text.
    """
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, line
    except (OSError, EOFError) as error:
        raise InputError("file", str(path), f"a readable file ({error})") from None
    except UnicodeDecodeError:
        raise InputError("file", str(path), "text in UTF-8") from None
