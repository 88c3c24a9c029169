"""Formatting of figures for people. MiB is 2^20 bytes; an absent figure is a dash, never 0."""

import math

KIB, MIB, GIB = 1024, 1024**2, 1024**3
ABSENT = "–"

# The factor from the unit of a claim to the metric's unit; the same table as in lib/harness/cell/units.cpp.
_FACTORS: dict[tuple[str, str], float] = {
    ("KiB", "B"): KIB,
    ("MiB", "B"): MIB,
    ("GiB", "B"): GIB,
    ("TiB", "B"): 1024**4,
    ("kB", "B"): 1e3,
    ("KB", "B"): 1e3,
    ("MB", "B"): 1e6,
    ("GB", "B"): 1e9,
    ("TB", "B"): 1e12,
    ("us", "ns"): 1e3,
    ("ms", "ns"): 1e6,
    ("s", "ns"): 1e9,
    ("us", "ms"): 1e-3,
    ("s", "ms"): 1e3,
    ("%", "1"): 0.01,
}


def factor(unit: str, base: str) -> float | None:
    """How many `base` one `unit` is; None if they measure different quantities."""
    return 1.0 if unit == base else _FACTORS.get((unit, base))


def grouped(value: float) -> str:
    """Integers as 618,135,552; fractions with four significant digits."""
    if math.isfinite(value) and value == int(value) and abs(value) < 2**53:
        return f"{int(value):,}"
    return f"{value:.4g}"


def scale_of(greatest: float) -> tuple[float, str]:
    """The unit, and its size, in which bytes up to `greatest` are most readable."""
    for size, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(greatest) >= size:
            return float(size), name
    return 1.0, "B"


def byte_text(value: float) -> str:
    size, name = scale_of(value)
    if size == 1:
        return f"{grouped(value)} B"
    return f"{value / size:,.{1 if abs(value) / size >= 10 else 2}f} {name}"


def nanosecond_text(value: float) -> str:
    for size, name in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if abs(value) >= size:
            return f"{value / size:.3g} {name}"
    return f"{value:.3g} ns"


def figure(value: float | None, unit: str) -> str:
    """A figure with its unit: `589.5 MiB`, `2.1 ms`, `31.4 dB`; counts and fractions have none."""
    if value is None:
        return ABSENT
    if not math.isfinite(value):
        return str(value)
    if unit == "B":
        return byte_text(value)
    if unit == "ns":
        return nanosecond_text(value)
    return grouped(value) if unit == "1" else f"{grouped(value)} {unit}"


def exact(value: float | None, unit: str) -> str:
    """The exact figure, for a tooltip."""
    if value is None:
        return ""
    number = f"{int(value):,}" if math.isfinite(value) and value == int(value) else repr(value)
    return number if unit == "1" else f"{number} {unit}"
