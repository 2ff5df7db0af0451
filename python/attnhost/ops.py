# SPDX-License-Identifier: Apache-2.0
"""What a layer of a model is to torch.compile: one operator with a fake kernel, so that a model's graph
stays whole. Without compilation a layer is called directly."""
import itertools
import weakref
from typing import Any, Dict, List, Optional, Tuple

import torch

_caches: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def number_of(cache: Any) -> int:
    """The number by which graphs know a cache."""
    number = next(_numbers)
    _caches[number] = cache
    return number


# The cache's memory is written, too, and is no operand: a layer's output orders it before the next.
@torch.library.custom_op("attnhost::layer", mutates_args=())
def _layer(operands: List[torch.Tensor], roles: str, mask: Optional[torch.Tensor], cache: int,
           kind: str, layer: int, is_new: bool, heads: int, width: int) -> torch.Tensor:
    given = {role: x if x.stride(-1) == 1 else x.contiguous()
             for role, x in zip(roles.split(","), operands)}
    return _caches[cache].run((kind, layer), is_new, given, mask)


@_layer.register_fake
def _(operands, roles, mask, cache, kind, layer, is_new, heads, width):  # type: ignore[no-untyped-def]
    return operands[0].new_empty((*operands[0].shape[:2], heads, width))


def run(cache: Any, key: Tuple[str, int], is_new: bool, operands: Dict[str, torch.Tensor],
        mask: Optional[torch.Tensor], heads: int, width: int) -> torch.Tensor:
    """A layer of a cache: operands of rows are [batch, rows, ...], the first of them one; the result is
    [batch, rows, heads, width] in its dtype."""
    if torch.compiler.is_compiling():
        return _layer(list(operands.values()), ",".join(operands), mask, cache.number, *key, is_new,
                      heads, width)
    return cache.run(key, is_new, operands, mask)
