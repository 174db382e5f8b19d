"""Compiled kernels that find and copy rows straight from pages, wherever the pages lie in memory.

A page is an Arrow IPC message. Its column buffers are found by two arrays: the address of each page of a run, and the offsets
of its buffers inside the page (from the table's index), so no page is ever decoded to use a few of its rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from millrace.core.compiled import kernel


def _loader(bits: int, result: Any) -> Any:
    @intrinsic
    def load(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            return builder.load(pointer, align=1)

        return result(types.int64), generate

    return load


load8 = _loader(8, types.uint8)
load16 = _loader(16, types.int16)
load32 = _loader(32, types.int32)
load64 = _loader(64, types.int64)


@intrinsic
def copy_bytes(typing_context: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy `count` bytes from one address to another."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        to = builder.inttoptr(arguments[0], pointer)
        origin = builder.inttoptr(arguments[1], pointer)
        cgutils.raw_memcpy(builder, to, origin, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@kernel
def find_codes(
    codes: Any, at: Any, addresses: Any, numbers: Any, sizes: Any, bases: Any, offsets: Any, firsts: Any, lasts: Any,
    first: Any, count: Any,
) -> None:  # fmt: skip
    """For each wanted code on run page `at[i]`: the first row with it, and how many rows of the page have it.

    Codes lie evenly in most pages (dense keys, hashes), so the search starts where an even page would have the code and
    widens from there; it is a binary search in any case.
    """
    for i in range(len(codes)):
        page = at[i]
        number = numbers[page]
        start = addresses[page] + offsets[number]
        size = np.int64(sizes[page])
        code = codes[i]
        least = firsts[number]
        low = np.int64(0)
        if code > lasts[number]:
            low = size
        elif code > least:
            share = np.float64(np.uint64(code - least)) / np.float64(np.uint64(lasts[number] - least))
            guess = np.int64(share * (size - 1))
            high = size
            reach = np.int64(1)
            if load64(start + 8 * guess) < code:
                low = guess + 1
                while low + reach < size and load64(start + 8 * (low + reach - 1)) < code:
                    low += reach
                    reach *= 2
                high = min(size, low + reach)
            else:
                high = guess
                while high - reach > 0 and load64(start + 8 * (high - reach)) >= code:
                    high -= reach
                    reach *= 2
                low = max(np.int64(0), high - reach)
            while low < high:
                middle = (low + high) >> 1
                if load64(start + 8 * middle) < code:
                    low = middle + 1
                else:
                    high = middle
        end = low
        while end < size and load64(start + 8 * end) == code:
            end += 1
        first[i] = bases[page] + low
        count[i] = end - low


@kernel
def resolve_rows(rows: Any, guess: Any, stride: Any, bases: Any, at: Any, inside: Any) -> None:
    """Run page and row inside it of each row number."""
    for i in range(len(rows)):
        row = rows[i]
        page = guess[row // stride]
        while bases[page + 1] <= row:
            page += 1
        at[i] = page
        inside[i] = row - bases[page]


@kernel
def gather1(at: Any, inside: Any, to: Any, addresses: Any, numbers: Any, offsets: Any, out: Any) -> None:
    for i in range(len(at)):
        out[to[i]] = load8(addresses[at[i]] + offsets[numbers[at[i]]] + np.int64(inside[i]))


@kernel
def gather2(at: Any, inside: Any, to: Any, addresses: Any, numbers: Any, offsets: Any, out: Any) -> None:
    for i in range(len(at)):
        out[to[i]] = load16(addresses[at[i]] + offsets[numbers[at[i]]] + 2 * np.int64(inside[i]))


@kernel
def gather4(at: Any, inside: Any, to: Any, addresses: Any, numbers: Any, offsets: Any, out: Any) -> None:
    for i in range(len(at)):
        out[to[i]] = load32(addresses[at[i]] + offsets[numbers[at[i]]] + 4 * np.int64(inside[i]))


@kernel
def gather8(at: Any, inside: Any, to: Any, addresses: Any, numbers: Any, offsets: Any, out: Any) -> None:
    for i in range(len(at)):
        out[to[i]] = load64(addresses[at[i]] + offsets[numbers[at[i]]] + 8 * np.int64(inside[i]))


@kernel
def gather16(at: Any, inside: Any, to: Any, addresses: Any, numbers: Any, offsets: Any, out: Any) -> None:
    for i in range(len(at)):
        start = addresses[at[i]] + offsets[numbers[at[i]]] + 16 * np.int64(inside[i])
        out[2 * to[i]] = load64(start)
        out[2 * to[i] + 1] = load64(start + 8)


GATHER = {
    1: (gather1, np.uint8), 2: (gather2, np.int16), 4: (gather4, np.int32), 8: (gather8, np.int64), 16: (gather16, np.int64),
}  # fmt: skip


@kernel
def gather_bits(at: Any, inside: Any, to: Any, addresses: Any, numbers: Any, offsets: Any, out: Any) -> Any:
    """Bits of a bitmap into a bitmap of zeros; a page without one (offset below zero) counts as all ones. Returns the ones."""
    ones = 0
    for i in range(len(at)):
        offset = offsets[numbers[at[i]]]
        bit = np.uint8(1)
        if offset >= 0:
            row = np.int64(inside[i])
            bit = (load8(addresses[at[i]] + offset + (row >> 3)) >> np.uint8(row & 7)) & np.uint8(1)
        if bit:
            out[to[i] >> 3] |= np.uint8(1) << np.uint8(to[i] & 7)
            ones += 1
    return ones


@kernel
def measure_bytes(at: Any, inside: Any, to: Any, addresses: Any, numbers: Any, offsets: Any, starts: Any, ends: Any) -> None:
    """Where each value starts in its page, and where it is to end in the output (`ends`, zeros before, one more than rows)."""
    for i in range(len(at)):
        place = addresses[at[i]] + offsets[numbers[at[i]]] + 4 * np.int64(inside[i])
        begin = np.int64(load32(place))
        starts[i] = begin
        ends[to[i] + 1] = np.int64(load32(place + 4)) - begin
    total = np.int64(0)
    for i in range(len(ends)):
        total += ends[i]
        ends[i] = total


@kernel
def gather_bytes(at: Any, to: Any, addresses: Any, numbers: Any, offsets: Any, starts: Any, ends: Any, target: Any) -> None:
    for i in range(len(at)):
        source = addresses[at[i]] + offsets[numbers[at[i]]] + starts[i]
        begin = ends[to[i]]
        copy_bytes(target + begin, source, ends[to[i] + 1] - begin)


@kernel
def copy_codes(addresses: Any, numbers: Any, sizes: Any, bases: Any, offsets: Any, target: Any) -> None:
    """The codes of every row of the run, one after the other."""
    for page in range(len(addresses)):
        source = addresses[page] + offsets[numbers[page]]
        copy_bytes(target + 8 * bases[page], source, 8 * np.int64(sizes[page]))


@kernel
def fill_guide(lasts: Any, base: Any, shift: Any, guide: Any) -> None:
    """guide[b]: the first page that ends at or behind the first code of bucket b. A bucket has 2^shift codes."""
    page = 0
    for bucket in range(len(guide)):
        while page < len(lasts) and np.uint64(lasts[page] - base) < np.uint64(bucket) << shift:
            page += 1
        guide[bucket] = page


@kernel
def locate_pages(codes: Any, firsts: Any, lasts: Any, guide: Any, shift: Any, first: Any, last: Any) -> None:
    """Pages whose codes enclose each code: from the first that ends at or behind it to the last that starts by it."""
    pages = len(firsts)
    for i in range(len(codes)):
        code = codes[i]
        if pages == 0 or code < firsts[0]:
            first[i] = 0
            last[i] = -1
            continue
        if code > lasts[pages - 1]:
            first[i] = pages
            last[i] = pages - 1
            continue
        bucket = np.int64(np.uint64(code - firsts[0]) >> shift)
        low = np.int64(guide[bucket])
        high = np.int64(guide[bucket + 1]) if bucket + 1 < len(guide) else pages - 1
        while low < high:
            middle = (low + high) >> 1
            if lasts[middle] < code:
                low = middle + 1
            else:
                high = middle
        first[i] = low
        last[i] = low - 1
        if firsts[low] <= code:
            last[i] = low
            if low + 1 < pages and firsts[low + 1] <= code:
                high = pages
                while low < high:
                    middle = (low + high) >> 1
                    if firsts[middle] <= code:
                        low = middle + 1
                    else:
                        high = middle
                last[i] = low - 1
