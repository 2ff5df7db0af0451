# SPDX-License-Identifier: Apache-2.0
"""What sequences own: pages of keys, shared where they begin alike, and slots of recurrent states."""
import itertools
from collections import OrderedDict
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence as Many, Tuple

import torch

from .errors import OutOfMemory


class Table(List[int]):
    """Pages of a sequence, in their order; also as a row of a block table, which grows with it."""

    def __init__(self, pages: Iterable[int] = ()) -> None:
        super().__init__(pages)
        self._row, self._width = torch.zeros(0, dtype=torch.int32, device="cpu"), 0
        self._filled = 0  # entries that are these pages

    def row(self, width: int) -> torch.Tensor:
        """The first `width` pages, with page 0 after the last."""
        if self._width < width:
            self._width, self._filled = max(width, 2 * self._width), 0
            self._row = torch.zeros(self._width, dtype=torch.int32, device="cpu")
        room = min(len(self), self._width)
        if self._filled < room:
            self._row[self._filled:room] = torch.tensor(self[self._filled:room], dtype=torch.int32, device="cpu")
            self._filled = room
        return self._row if width == self._width else self._row[:width]

    def slots(self, start: int, end: int, page_size: int) -> torch.Tensor:
        """Of the keys from position `start` to `end`."""
        positions = torch.arange(start, end, device="cpu")
        row = self.row(-(-end // page_size))
        return row[positions // page_size].long() * page_size + positions % page_size


class Sequence:
    """A request: its tokens, the pages of its keys, the slot of its states, and how many tokens have
    been computed."""

    def __init__(self, tokens: Many[int]) -> None:
        self.tokens = list(tokens)
        self.pages = Table()
        self.published = 0  # pages that others may share
        self.prefix = 0  # the number of the prefix that ends with the last of them
        self.state = 0  # its slot; 0 = none yet
        self.source_pages = Table()  # of the keys that its cross attention reads
        self.source_length = 0
        self.source_new = 0  # of these, those that the planned step brings
        self.length = 0
        self.shared = 0  # of these, tokens whose keys another sequence had computed

    @property
    def next_token(self) -> int:
        """The one that has no keys yet; 0 where it is not known."""
        return self.tokens[self.length] if self.length < len(self.tokens) else 0


Prefix = Tuple[int, Tuple[int, ...]]  # the number of what is before a page, and the page's tokens


class Pages:
    """Pages with counts of their users. Full pages are known by their tokens and the prefix before
    them, which has a number; one without users is kept until its room is needed. Page 0 is
    padding, and prefix 0 is empty."""

    def __init__(self, count: int, page_size: int,
                 forget: Callable[[int], Any] = lambda number: None) -> None:
        self.page_size = page_size
        self._forget = forget  # called with the number of a prefix that no lookup can find any more
        self.free = list(range(count - 1, 0, -1))
        self.users = [0] * count
        self.by_tokens: Dict[Prefix, int] = {}
        self.known: Dict[int, Tuple[Prefix, int]] = {}  # what it has, and the number of its prefix
        self._numbers = itertools.count(1)
        self.unused: "OrderedDict[int, None]" = OrderedDict()  # known pages without users, oldest first

    @property
    def available(self) -> int:
        return len(self.free) + len(self.unused)

    def take(self) -> int:
        if not self.available:
            raise OutOfMemory(f"the pool has no page of {self.page_size} tokens left; accepted: "
                              "fewer or shorter sequences, or a larger num_tokens",
                              "OUT_OF_DEVICE_MEMORY")
        if not self.free:
            page, _ = self.unused.popitem(last=False)
            prefix, number = self.known.pop(page)
            del self.by_tokens[prefix]
            self._forget(number)
        else:
            page = self.free.pop()
        self.users[page] = 1
        return page

    def share(self, page: int) -> None:
        self.users[page] += 1
        self.unused.pop(page, None)

    def drop(self, page: int) -> None:
        self.users[page] -= 1
        if self.users[page]:
            return
        if page in self.known:
            self.unused[page] = None
        else:
            self.free.append(page)

    def publish(self, page: int, prefix: Prefix) -> int:
        """Its keys are computed: others may share it. The first one with this prefix stays. Returns the
        number of the prefix that it ends."""
        first = self.by_tokens.setdefault(prefix, page)
        if first == page and page not in self.known:
            self.known[page] = (prefix, next(self._numbers))
        return self.known[first][1]


class Snapshots:
    """Slots with the states of recurrent layers after a prefix, by its number. The one that was used
    longest ago makes room."""

    def __init__(self, slots: Iterable[int]) -> None:
        self._free = list(slots)
        self._slots: "OrderedDict[int, int]" = OrderedDict()

    def find(self, prefix: int) -> Optional[int]:
        """Its slot, used now."""
        if prefix in self._slots:
            self._slots.move_to_end(prefix)
        return self._slots.get(prefix)

    def take(self, prefix: int) -> Optional[int]:
        """A slot to write; None where it has been written, or where there are none."""
        if self.find(prefix) is not None or not (self._free or self._slots):
            return None
        slot = self._free.pop() if self._free else self._slots.popitem(last=False)[1]
        self._slots[prefix] = slot
        return slot

    def forget(self, prefix: int) -> None:
        if prefix in self._slots:
            self._free.append(self._slots.pop(prefix))
