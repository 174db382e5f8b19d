"""Compiled kernels that search the blocks of an index, and the hash table of the keys that are held in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from millrace.core.arrays import Int32Array, Int64Array
from millrace.core.compiled import kernel
from millrace.core.memoryaccess import load32, load64

_BLOCK_BYTES = 4096


class HotKeys(NamedTuple):
    """A hash table with open addressing: first page -1 is a free place. No last pages: they are the first ones."""

    codes: Int64Array
    firsts: Int32Array
    lasts: Int32Array


@kernel
def _place(code: Any, places: Any) -> Any:
    """Where a code goes: the upper half of a product, brought into range without a division."""
    upper = (np.uint64(code) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
    return np.int64((upper * np.uint64(places)) >> np.uint64(32))


@kernel
def add_hot(block: Any, keys: Any, block_keys: Any, spans: Any, hot: Any) -> None:
    """Hold the first `keys` keys of the block at this address."""
    places = len(hot.codes)
    for i in range(keys):
        code = load64(block + 8 * i)
        at = _place(code, places)
        while hot.firsts[at] >= 0 and hot.codes[at] != code:
            at = at + 1 if at + 1 < places else 0
        hot.codes[at] = code
        hot.firsts[at] = load32(block + 8 * block_keys + 4 * i)
        if spans:
            hot.lasts[at] = load32(block + 12 * block_keys + 4 * i)


@kernel
def find_hot(codes: Any, hot: Any, first: Any, last: Any) -> Any:
    """Which codes are held, and the pages of those that are."""
    places = len(hot.codes)
    found = np.zeros(len(codes), np.bool_)
    for i in range(len(codes)):
        at = _place(codes[i], places)
        while hot.firsts[at] >= 0:
            if hot.codes[at] == codes[i]:
                found[i] = True
                first[i] = hot.firsts[at]
                last[i] = hot.lasts[at] if len(hot.lasts) else hot.firsts[at]
                break
            at = at + 1 if at + 1 < places else 0
    return found


@kernel
def search_blocks(
    codes: Any, wanted: Any, numbers: Any, begin: Any, address: Any, sizes: Any, block_keys: Any, spans: Any,
    first: Any, last: Any,
) -> None:  # fmt: skip
    """Look code `wanted[i]` up in block `numbers[i]`; blocks from `begin` on lie at this address."""
    for i in range(len(wanted)):
        code = codes[wanted[i]]
        block = address + (numbers[i] - begin) * _BLOCK_BYTES
        low = np.int64(0)
        high = np.int64(sizes[numbers[i]])
        size = high
        while low < high:
            middle = (low + high) >> 1
            if load64(block + 8 * middle) < code:
                low = middle + 1
            else:
                high = middle
        if low < size and load64(block + 8 * low) == code:
            pages = block + 8 * np.int64(block_keys) + 4 * low
            first[wanted[i]] = load32(pages)
            last[wanted[i]] = load32(pages + 4 * np.int64(block_keys)) if spans else load32(pages)
