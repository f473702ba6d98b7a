"""KV blocks: sharing, eviction order, and books that balance."""

from __future__ import annotations

from fakes.engine.kv_cache import KvCache


def _filled(cache: KvCache, hashes: list[int]) -> list[int]:
    blocks: list[int] = []
    assert cache.allocate(len(hashes), blocks)
    for block, content in zip(blocks, hashes, strict=True):
        cache.commit(block, content)
    return blocks


def test_released_blocks_are_found_by_the_longest_known_prefix() -> None:
    cache = KvCache(8)
    cache.release(_filled(cache, [1, 2, 3]))
    assert len(cache.match([1, 2, 3, 4], 4)) == 3
    assert len(cache.match([1, 9, 3], 3)) == 1
    assert len(cache.match([1, 2, 3], 2)) == 2
    assert cache.match([9, 1], 2) == []


def test_shared_blocks_stay_in_use_until_the_last_user_leaves() -> None:
    cache = KvCache(4)
    first = _filled(cache, [1, 2])
    second = cache.match([1, 2], 2)
    cache.share(second)
    cache.check(dict.fromkeys(first, 2))
    cache.release(first)
    assert cache.unused == 2
    cache.release(second)
    assert cache.unused == 4
    cache.check({})


def test_blank_blocks_go_before_cached_ones() -> None:
    cache = KvCache(4)
    cache.release(_filled(cache, [1, 2]))
    taken: list[int] = []
    assert cache.allocate(2, taken)
    assert len(cache.match([1, 2], 2)) == 2
    assert cache.evictions == 0


def test_the_longest_unused_prefix_is_evicted_first_and_its_tail_before_its_head() -> None:
    cache = KvCache(6)
    old = _filled(cache, [1, 2, 3])
    new = _filled(cache, [11, 12, 13])
    cache.release(old)
    cache.release(new)
    taken: list[int] = []
    for left_of_old in (2, 1, 0):
        assert cache.allocate(1, taken)
        assert len(cache.match([1, 2, 3], 3)) == left_of_old
        assert len(cache.match([11, 12, 13], 3)) == 3
    assert cache.evictions == 3


def test_a_prefix_that_is_used_again_moves_to_the_end_of_the_line() -> None:
    cache = KvCache(4)
    cache.release(_filled(cache, [1, 2]))
    cache.release(_filled(cache, [11, 12]))
    again = cache.match([1, 2], 2)
    cache.share(again)
    cache.release(again)
    assert cache.allocate(2, [])
    assert len(cache.match([1, 2], 2)) == 2
    assert cache.match([11, 12], 2) == []


def test_too_large_an_allocation_takes_nothing() -> None:
    cache = KvCache(2)
    taken: list[int] = []
    assert not cache.allocate(3, taken)
    assert taken == []
    assert cache.unused == 2


def test_a_block_with_known_content_is_blank_once_released() -> None:
    cache = KvCache(2)
    first = _filled(cache, [1])
    double = _filled(cache, [1])
    cache.release(double)
    cache.check({first[0]: 1})
    cache.release(first)
    assert len(cache.match([1], 1)) == 1
    cache.check({})
