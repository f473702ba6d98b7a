"""KV blocks of one engine: who uses them, what they hold, which goes next. Pure; must not know requests.

As vLLM v1 does it: a block is used (one or more users), cached (unused, its content known by a hash, kept until its
place is needed) or blank (unused, nothing to lose). Blank blocks go first, then cached ones, the longest unused
first; of blocks released together, the tail goes before the head, since a head without its tail is still a prefix and
the reverse is not. A hash stands for the block's tokens and all tokens before them. Read `batch` next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class KvCache:
    """`blocks` blocks, all blank at first."""

    __slots__ = ("_blank", "_block_of", "_cached", "_hash_of", "_users", "blocks", "evictions")

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.evictions = 0
        """Cached blocks that lost their content to a newcomer."""
        self._users = [0] * blocks
        self._hash_of: list[int | None] = [None] * blocks
        self._block_of: dict[int, int] = {}
        self._cached: OrderedDict[int, int] = OrderedDict()
        """Unused blocks with their content, the next to go first."""
        self._blank = list(range(blocks - 1, -1, -1))
        """Unused blocks without content, the next to go last."""

    @property
    def unused(self) -> int:
        """Blocks that `allocate` could hand out."""
        return len(self._blank) + len(self._cached)

    @property
    def usage(self) -> float:
        """Share of the blocks in use, 0 to 1; cached content is not in use."""
        return 1.0 - self.unused / self.blocks

    def match(self, hashes: Sequence[int], limit: int) -> list[int]:
        """Blocks that hold the longest known prefix of `hashes`, at most `limit` of them. Takes nothing."""
        found = []
        block_of = self._block_of
        for position in range(min(limit, len(hashes))):
            block = block_of.get(hashes[position])
            if block is None:
                break
            found.append(block)
        return found

    def unused_among(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` nobody uses."""
        users = self._users
        return sum(1 for block in blocks if not users[block])

    def share(self, blocks: Sequence[int]) -> None:
        """Adds a user to each of `blocks`, which come from `match`."""
        for block in blocks:
            if self._users[block] == 0:
                del self._cached[block]
            self._users[block] += 1

    def allocate(self, count: int, into: list[int]) -> bool:
        """Appends `count` blocks with one user each to `into`; False, and none taken, if too few are unused."""
        if count > len(self._blank) + len(self._cached):
            return False
        users, hash_of, block_of = self._users, self._hash_of, self._block_of
        for _ in range(count):
            if self._blank:
                block = self._blank.pop()
            else:
                block, content = self._cached.popitem(last=False)
                del block_of[content]
                hash_of[block] = None
                self.evictions += 1
            users[block] = 1
            into.append(block)
        return True

    def commit(self, block: int, content: int) -> None:
        """A used block is full, and `content` is its hash. Of blocks with the same content, `match` finds the first."""
        if content not in self._block_of:
            self._block_of[content] = block
            self._hash_of[block] = content

    def release(self, blocks: list[int]) -> None:
        """Takes one user from each of `blocks` (in the order of their tokens) and empties the list."""
        users, hash_of = self._users, self._hash_of
        for block in reversed(blocks):
            users[block] -= 1
            if users[block] == 0:
                content = hash_of[block]
                if content is None:
                    self._blank.append(block)
                else:
                    self._cached[block] = content
        blocks.clear()

    def check(self, users_of: dict[int, int]) -> None:
        """Asserts that the books balance, given the users of each used block. Slow; for tests."""
        unused = list(self._blank) + list(self._cached)
        used = {block: users for block, users in enumerate(self._users) if users}
        assert len(unused) == len(set(unused)), "a block is unused twice"
        assert used == users_of, "users are miscounted"
        assert not used.keys() & set(unused), "a block is both used and unused"
        assert len(used) + len(unused) == self.blocks, "a block is lost"
        assert all(self._hash_of[block] is None for block in self._blank), "a blank block has content"
        assert {content: block for block, content in enumerate(self._hash_of) if content is not None} == self._block_of
