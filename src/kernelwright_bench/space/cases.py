"""Search spaces in the style of published ones, to measure how fast the feasible set is known.

Each case says its constraints twice: as expressions, and as a plain Python function that brute force calls. That is
also an independent check of the count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernelwright.problem.config import Value


@dataclass(frozen=True, slots=True)
class SpaceCase:
    """One space to build."""

    name: str
    values: Mapping[str, tuple[Value, ...]]
    constraints: tuple[str, ...]
    accepts: Callable[..., bool]
    """The same constraints on the values in order, the cheapest test first, as a person would write it by hand."""
    is_large: bool = False


def _powers(low: int, high: int) -> tuple[int, ...]:
    return tuple(1 << exponent for exponent in range(low, high + 1))


def _steps(low: int, high: int, step: int = 1) -> tuple[int, ...]:
    return tuple(range(low, high + 1, step))


def _accepts_rows(block: int, vector: int, unroll: int, rows: int, cache: int) -> bool:
    del cache
    return 11008 % vector == 0 and block * vector * unroll <= 2 * 11008 and block * rows <= 1024


def _accepts_dedispersion(bx: int, by: int, tx: int, ty: int, stride_x: int, stride_y: int, unroll: int) -> bool:
    return (
        32 <= bx * by <= 1024
        and (tx > 1 or stride_x == 0)
        and (ty > 1 or stride_y == 0)
        and (unroll == 0 or 1536 % unroll == 0)
    )


def _accepts_convolution(
    bx: int, by: int, tx: int, ty: int, padding: int, shared: int, constant: int, vector: int
) -> bool:
    del constant
    return (
        64 <= bx * by <= 1024
        and (padding == 0 or (shared == 1 and bx % 32 != 0))
        and tx % vector == 0
        and tx * ty <= 64
        and (shared == 0 or (bx * tx + 14 + padding) * (by * ty + 14) * 4 <= 49152)
    )


def _accepts_gemm(
    mwg: int, nwg: int, kwg: int, mdimc: int, ndimc: int, mdima: int, ndimb: int, kwi: int, vwm: int, vwn: int,
    strm: int, strn: int, sa: int, sb: int, kreg: int,
) -> bool:  # fmt: skip
    del strm, strn
    return (
        kwg % kwi == 0
        and kwg % kreg == 0
        and mwg % (mdimc * vwm) == 0
        and nwg % (ndimc * vwn) == 0
        and mwg % (mdima * vwm) == 0
        and nwg % (ndimb * vwn) == 0
        and mdimc * ndimc <= 1024
        and (mdimc * ndimc) % mdima == 0
        and (mdimc * ndimc) % ndimb == 0
        and kwg % ((mdimc * ndimc) // mdima) == 0
        and kwg % ((mdimc * ndimc) // ndimb) == 0
        and (sa * kwg * mwg + sb * kwg * nwg) * 4 <= 49152
    )


def _accepts_matmul(
    bm: int, bn: int, bk: int, tm: int, tn: int, va: int, vb: int, stages: int, unroll: int, pad: int, swizzle: int
) -> bool:
    return (
        bm % tm == 0
        and bn % tn == 0
        and (bm // tm) * (bn // tn) <= 1024
        and (bm // tm) * (bn // tn) % 32 == 0
        and tm * tn + tm + tn <= 160
        and bk % va == 0
        and bn % vb == 0
        and bk % max(unroll, 1) == 0
        and (swizzle == 0 or pad == 0)
        and stages * (bm + pad) * bk * 2 + stages * (bn + pad) * bk * 2 <= 49152
        and bm * bk % ((bm // tm) * (bn // tn) * va) == 0
        and bn * bk % ((bm // tm) * (bn // tn) * vb) == 0
    )


def _accepts_stencil(
    bx: int, by: int, bz: int, tx: int, ty: int, tz: int, halo: int, steps: int, vector: int, unroll: int
) -> bool:
    return (
        32 <= bx * by * bz <= 1024
        and tx % vector == 0
        and tx * ty * tz <= 64
        and 512 % (by * ty) == 0
        and 512 % (bz * tz) == 0
        and tz % unroll == 0
        and (bx * tx + 2 * halo * steps) * (by * ty + 2 * halo * steps) * (bz * tz + 2 * halo * steps) * 4 <= 98304
    )


CASES: tuple[SpaceCase, ...] = (
    SpaceCase(
        "row-wise",
        {
            "BLOCK": _powers(5, 10), "VEC": _powers(0, 4), "UNROLL": _powers(0, 3), "ROWS": _steps(1, 8),
            "CACHE": (0, 1, 2),
        },
        ("11008 % VEC == 0", "BLOCK * VEC * UNROLL <= 2 * 11008", "BLOCK * ROWS <= 1024"),
        _accepts_rows,
    ),
    SpaceCase(
        "dedispersion",
        {
            "BX": _powers(0, 5), "BY": _steps(32, 256, 8), "TX": _steps(1, 4), "TY": _steps(1, 8), "SX": (0, 1),
            "SY": (0, 1), "UNROLL": (0, 1, 2, 3),
        },
        (
            "32 <= BX * BY <= 1024", "TX > 1 or SX == 0", "TY > 1 or SY == 0",
            "UNROLL == 0 or 1536 % max(UNROLL, 1) == 0",
        ),
        _accepts_dedispersion,
    ),
    SpaceCase(
        "convolution",
        {
            "BX": _steps(16, 256, 16), "BY": _powers(0, 4), "TX": _steps(1, 8), "TY": _steps(1, 8), "PAD": (0, 1),
            "SHARED": (0, 1), "CONSTANT": (0, 1), "VEC": _powers(0, 3),
        },
        (
            "64 <= BX * BY <= 1024", "PAD == 0 or (SHARED == 1 and BX % 32 != 0)", "TX % VEC == 0", "TX * TY <= 64",
            "SHARED == 0 or (BX * TX + 14 + PAD) * (BY * TY + 14) * 4 <= 49152",
        ),
        _accepts_convolution,
    ),
    SpaceCase(
        "gemm",
        {
            "MWG": _powers(4, 7), "NWG": _powers(4, 7), "KWG": (16, 32), "MDIMC": _powers(3, 5), "NDIMC": _powers(3, 5),
            "MDIMA": _powers(3, 5), "NDIMB": _powers(3, 5), "KWI": (2, 8), "VWM": _powers(0, 3), "VWN": _powers(0, 3),
            "STRM": (0, 1), "STRN": (0, 1), "SA": (0, 1), "SB": (0, 1), "KREG": (1, 2, 4),
        },
        (
            "KWG % KWI == 0", "KWG % KREG == 0", "MWG % (MDIMC * VWM) == 0", "NWG % (NDIMC * VWN) == 0",
            "MWG % (MDIMA * VWM) == 0", "NWG % (NDIMB * VWN) == 0", "MDIMC * NDIMC <= 1024",
            "(MDIMC * NDIMC) % MDIMA == 0", "(MDIMC * NDIMC) % NDIMB == 0",
            "KWG % ((MDIMC * NDIMC) // MDIMA) == 0", "KWG % ((MDIMC * NDIMC) // NDIMB) == 0",
            "(SA * KWG * MWG + SB * KWG * NWG) * 4 <= 49152",
        ),
        _accepts_gemm,
        is_large=True,
    ),
    SpaceCase(
        "stencil",
        {
            "BX": _steps(8, 128, 8), "BY": _powers(0, 6), "BZ": _powers(0, 6), "TX": _steps(1, 16), "TY": _steps(1, 8),
            "TZ": _steps(1, 8), "HALO": (1, 2, 3, 4), "STEPS": (1, 2, 3, 4), "VEC": _powers(0, 3),
            "UNROLL": _powers(0, 3),
        },
        (
            "32 <= BX * BY * BZ <= 1024", "TX % VEC == 0", "TX * TY * TZ <= 64", "512 % (BY * TY) == 0",
            "512 % (BZ * TZ) == 0", "TZ % UNROLL == 0",
            "(BX * TX + 2 * HALO * STEPS) * (BY * TY + 2 * HALO * STEPS) * (BZ * TZ + 2 * HALO * STEPS) * 4 <= 98304",
        ),
        _accepts_stencil,
        is_large=True,
    ),
    SpaceCase(
        "tiled matmul",
        {
            "BM": _steps(16, 256, 16), "BN": _steps(16, 256, 16), "BK": _steps(8, 128, 8), "TM": _steps(1, 16),
            "TN": _steps(1, 16), "VA": _powers(0, 3), "VB": _powers(0, 3), "STAGES": (1, 2, 3, 4),
            "UNROLL": (0, 1, 2, 4, 8, 16), "PAD": (0, 1, 2, 4, 8), "SWIZZLE": (0, 1, 2, 3, 4),
        },
        (
            "BM % TM == 0", "BN % TN == 0", "(BM // TM) * (BN // TN) <= 1024", "(BM // TM) * (BN // TN) % 32 == 0",
            "TM * TN + TM + TN <= 160", "BK % VA == 0", "BN % VB == 0", "BK % max(UNROLL, 1) == 0",
            "SWIZZLE == 0 or PAD == 0", "STAGES * (BM + PAD) * BK * 2 + STAGES * (BN + PAD) * BK * 2 <= 49152",
            "BM * BK % ((BM // TM) * (BN // TN) * VA) == 0", "BN * BK % ((BM // TM) * (BN // TN) * VB) == 0",
        ),
        _accepts_matmul,
        is_large=True,
    ),
)  # fmt: skip
"""Three small and three large ones, by size."""
