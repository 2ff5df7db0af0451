# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3 without copies, for races: a sequence that lies in one page is read there, by a wheel without pages
too. It is no backend to serve with: new keys need a slot, and NaN after a sequence's end makes its output NaN.

    attnhost bench --device cuda:0 --backend fa3_like,flash_attn_3_in_place --set plugins.path=flash_attn_3_in_place.py \\
        --shape mode=prefill,kv_len=8192,page_size=16384,new_kv=cached
"""
from flash_attn_3 import FlashAttn3


class FlashAttn3InPlace(FlashAttn3):
    name = "flash_attn_3_in_place"
    doc = FlashAttn3.doc + ", a sequence of one page in place"
    in_place = True
