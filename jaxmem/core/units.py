"""Units: SI throughout, GB and GiB apart, cycles to seconds and back.

Inside jaxmem times are seconds, sizes bytes and energies joules. A catalog may write any unit of
the table below; `to_si` converts it and refuses a unit of another dimension.
"""

from jaxmem.core.errors import InputError

_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_SMALL = {"m": 1e-3, "u": 1e-6, "n": 1e-9, "p": 1e-12}

KIB, MIB, GIB = 2.0**10, 2.0**20, 2.0**30
GB, TB = 1e9, 1e12
DAY_S = 86400.0
YEAR_S = 365.0 * DAY_S


def _table() -> dict[str, tuple[str, float]]:
    table = {"1": ("1", 1.0), "": ("1", 1.0), "%": ("1", 0.01), "cycles": ("cycles", 1.0)}
    for p, f in {**_PREFIX, **_BINARY}.items():
        table[p + "B"] = ("B", f)
        table[p + "B/s"] = ("B/s", f)
        table[p + "bit/s"] = ("B/s", f / 8)
    for p, f in _PREFIX.items():
        table[p + "FLOP/s"] = ("FLOP/s", f)
        table[p + "Hz"] = ("Hz", f)
        table[p + "W"] = ("W", f)
    for p, f in {"": 1.0, **_SMALL}.items():
        table[p + "s"] = ("s", f)
        table[p + "J"] = ("J", f)
        table[p + "J/B"] = ("J/B", f)
        table[p + "J/bit"] = ("J/B", f * 8)
        table[p + "J/FLOP"] = ("J/FLOP", f)
        table[p + "W"] = ("W", f)
    table["day"], table["year"] = ("s", DAY_S), ("s", YEAR_S)
    table["mm2"] = ("mm2", 1.0)
    table["tokens"], table["blocks"] = ("tokens", 1.0), ("blocks", 1.0)
    return table


UNITS = _table()
"""unit as written -> (SI unit, factor)."""


def to_si(
    value: float | int, unit: str, si_unit: str, *, field: str = "unit", where: str = ""
) -> float:
    """`value` given in `unit`, in `si_unit`.

    Raises:
        InputError: unknown unit, or one of another dimension.

    Example:
        >>> to_si(16, "GiB", "B"), to_si(16, "GB", "B")
        (17179869184.0, 16000000000.0)
    """
    same = [name for name, (si, _) in UNITS.items() if si == si_unit and name]
    if unit not in UNITS or UNITS[unit][0] != si_unit:
        expected = f"a unit of {si_unit} ({', '.join(same[:8])})"
        raise InputError(f"{field}.unit", unit, expected, known=same, where=where)
    # Fifteen digits: what was written in decimal is meant in decimal.
    return float(f"{float(value) * UNITS[unit][1]:.15g}")
