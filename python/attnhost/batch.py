# SPDX-License-Identifier: Apache-2.0
"""What one step works on: attn_batch.h in Python."""
import ctypes
from typing import Any, List, Optional, Sequence, Union

from . import _abi, _call, _words
from .errors import InvalidArgument


def operand(tensor: Any, role: str = "tensor") -> _abi.attn_tensor:
    """A view of a tensor of torch, numpy, jax ..., which is kept alive and not copied."""
    made = _abi.attn_tensor()
    made.owner = _call.view(tensor, ctypes.addressof(made), role)
    return made


def _address(tensor: Any, name: str, dtype: int, rows: bool = False) -> int:
    """Of a dense array of this type, or one whose `rows` lie any distance apart."""
    seen = operand(tensor, name)
    strides, dense = [], 1
    for extent in reversed(seen.shape[:seen.ndim]):
        strides.insert(0, dense)
        dense *= extent
    if rows and seen.ndim == 2 and seen.strides[0] >= seen.shape[1]:
        strides[0] = seen.strides[0]
    if seen.dtype != dtype:
        raise InvalidArgument(
            f"{name}: {_words.DTYPE_NAMES.get(seen.dtype, hex(seen.dtype))}: accepted "
            f"{_words.DTYPE_NAMES[dtype]}", "INVALID_ARGUMENT", "batch")
    if any(have != want for have, want, extent in
           zip(seen.strides, strides, seen.shape[:seen.ndim]) if extent > 1):
        raise InvalidArgument(f"{name}: strides {list(seen.strides[:seen.ndim])}: accepted "
                              f"{strides}, a dense array", "INVALID_ARGUMENT", "batch")
    return (seen.data or 0) + seen.byte_offset


def _pair(kind: Any, dtype: int, array: Any, name: str, rows: bool = False) -> Any:
    """An array in two places: `array` on the device, or (host, device); on the CPU both are one."""
    if array is None:
        return kind()
    host, device = array if isinstance(array, tuple) else (array, array)
    made = kind()
    if host is not None:
        if operand(host, name).device_type == _abi.ATTN_DEVICE_CPU:
            made.host = _address(host, name, dtype, rows)
        elif host is not device:
            raise InvalidArgument(f"{name}: the first of the pair is on a device: accepted host "
                                  "memory", "INVALID_ARGUMENT", "batch")
    if device is not None:
        made.device = _address(device, name, dtype, rows)
    return made


def i32(array: Any, name: str = "array", rows: bool = False) -> _abi.attn_i32_array:
    return _pair(_abi.attn_i32_array, _abi.ATTN_I32, array, name, rows)


def _row_stride(array: Any, name: str) -> int:
    """Elements between two rows of a table, on the host and on the device."""
    strides = set()
    for part in array if isinstance(array, tuple) else (array,):
        if part is not None:
            seen = operand(part, name)
            if seen.ndim != 2:
                raise InvalidArgument(f"{name}: {seen.ndim} dimensions: accepted 2, [sequences, "
                                      "entries]", "INVALID_ARGUMENT", "batch")
            strides.add(max(seen.strides[0], seen.shape[1]))
    if len(strides) > 1:
        raise InvalidArgument(f"{name}: rows {_words.join(map(str, strides))} elements apart: accepted the same "
                              "on the host and on the device", "INVALID_ARGUMENT", "batch")
    return strides.pop()


def i64(array: Any, name: str = "array") -> _abi.attn_i64_array:
    return _pair(_abi.attn_i64_array, _abi.ATTN_I64, array, name)


def _refuse_short(name: str, array: Any, least: int) -> None:
    """Arrays of a batch have no length in C, which would read beyond their end."""
    for part in array if isinstance(array, tuple) else (array,):
        if part is not None and part.shape[0] < least:
            raise InvalidArgument(f"{name}: {part.shape[0]} entries: accepted {least} and more",
                                  "INVALID_ARGUMENT", "batch", str(part.shape[0]))


def _total(indptr: Any, num_seqs: int, otherwise: int) -> int:
    """The last entry of an indptr array, if it can be read without a device."""
    host = indptr[0] if isinstance(indptr, tuple) else indptr
    if host is None or operand(host).device_type != _abi.ATTN_DEVICE_CPU:
        return otherwise
    return int(host[num_seqs])


class KVGroup:
    """Where the keys of a KV group lie: slots of new keys, and the slots of all keys in one or more
    of the three forms (attn_kv_batch). Arrays are int32, `out_cache_loc` int64; on a GPU each is a
    device array, or (host array, device array). Tables may be parts of wider ones."""

    ARRAYS = ("kv_lens", "kv_new_indptr", "req_to_token", "block_table", "kv_indptr", "kv_indices",
              "last_page_len")

    def __init__(self, page_size: int, *, out_cache_loc: Any = None, **arrays: Any) -> None:
        self.kept = (out_cache_loc, arrays)
        forms = {"req_to_token": _abi.ATTN_INDEX_REQ_TO_TOKEN,
                 "block_table": _abi.ATTN_INDEX_BLOCK_TABLE, "kv_indices": _abi.ATTN_INDEX_CSR}
        self.struct = _abi.attn_kv_batch(page_size=page_size)
        self.struct.out_cache_loc = i64(out_cache_loc, "out_cache_loc")
        for name, array in arrays.items():
            if name not in self.ARRAYS:
                raise TypeError(f"KVGroup() has no array '{name}'; accepted: out_cache_loc, "
                                + ", ".join(self.ARRAYS))
            is_table = name in ("req_to_token", "block_table")
            if is_table and array is not None:
                setattr(self.struct, f"{name}_stride", _row_stride(array, name))
            setattr(self.struct, name, i32(array, name, is_table))
            if name in forms and array is not None:
                self.struct.index_forms |= forms[name]

    def refuse_short(self, num_seqs: int, num_tokens: int) -> None:
        """Raise an error that names the first array with too few entries for so many sequences and new keys."""
        slots, arrays = self.kept
        for name, more in (("kv_lens", 0), ("kv_new_indptr", 1), ("block_table", 0), ("kv_indptr", 1),
                           ("last_page_len", 0)):
            _refuse_short(name, arrays.get(name), num_seqs + more)
        brought = num_tokens if arrays.get("kv_new_indptr") is None else 0
        _refuse_short("out_cache_loc", slots, _total(arrays.get("kv_new_indptr"), num_seqs, brought))
        _refuse_short("kv_indices", arrays.get("kv_indices"), _total(arrays.get("kv_indptr"), num_seqs, 0))


class Batch:
    """A step: which sequences, how long, where their keys lie (attn_batch). For DECODE, prefix_lens
    and q_indptr are not needed. Of a MIXED batch the last num_decode_seqs sequences decode one query
    each, unless first_decode_seq and decode_q_len say otherwise."""

    def __init__(self, mode: Union[str, int], *, seq_lens: Any, kv_groups: Sequence[KVGroup],
                 max_q_len: int, max_kv_len: int, num_tokens: int, prefix_lens: Any = None,
                 q_indptr: Any = None, req_pool_indices: Any = None, num_decode_seqs: int = 0,
                 first_decode_seq: Optional[int] = None, decode_q_len: Optional[int] = None,
                 num_real_seqs: Optional[int] = None, num_real_tokens: Optional[int] = None,
                 state_groups: Sequence[_abi.attn_state_batch] = (), **members: Any) -> None:
        last = seq_lens[1] if isinstance(seq_lens, tuple) else seq_lens
        count = operand(last, "seq_lens").shape[0]
        self.example = last
        self.kept: List[Any] = [seq_lens, prefix_lens, q_indptr, req_pool_indices, kv_groups,
                                state_groups]
        mixed = _words.number("mode", mode, _words.MODES) == _words.MODES["mixed"]
        if first_decode_seq is None:
            first_decode_seq = count - num_decode_seqs if mixed else 0
        if decode_q_len is None:
            decode_q_len = 1 if mixed else 0
        self._groups = (_abi.attn_kv_batch * len(kv_groups))(*(g.struct for g in kv_groups))
        self.struct = _abi.attn_batch(
            mode=_words.number("mode", mode, _words.MODES), num_seqs=count, num_tokens=num_tokens,
            num_real_seqs=count if num_real_seqs is None else num_real_seqs,
            num_real_tokens=num_tokens if num_real_tokens is None else num_real_tokens,
            num_decode_seqs=num_decode_seqs, first_decode_seq=first_decode_seq,
            decode_q_len=decode_q_len, max_q_len=max_q_len, max_kv_len=max_kv_len,
            num_kv_groups=len(kv_groups), num_state_groups=len(state_groups),
            state_groups=list(state_groups), **members)
        self.struct.kv_groups = ctypes.cast(self._groups, ctypes.POINTER(_abi.attn_kv_batch))
        for name, array in (("seq_lens", seq_lens), ("prefix_lens", prefix_lens),
                            ("q_indptr", q_indptr), ("req_pool_indices", req_pool_indices)):
            setattr(self.struct, name, i32(array, name))
            _refuse_short(name, array, count + (name == "q_indptr"))
        for group in kv_groups:
            group.refuse_short(count, num_tokens)
        for states in state_groups:
            for array in states.kept:
                _refuse_short("a state group", array, count)


def state_group(slot: Any, dst_slot: Any = None, has_initial: Any = None) -> _abi.attn_state_batch:
    """A state group: slots of recurrent states, one for each sequence (attn_state_batch)."""
    made = _abi.attn_state_batch()
    made.slot, made.dst_slot = i32(slot, "slot"), i32(dst_slot, "dst_slot")
    made.has_initial = i32(has_initial, "has_initial")
    made.kept = [slot, dst_slot, has_initial]
    return made
