# SPDX-License-Identifier: Apache-2.0
"""FlashInfer over pages where they lie, for races. It is no backend to serve with: new keys need a slot, a KV group all
keys of its sequences, and long sequences are put together by an LSE of rounded probabilities.

    attnhost bench --device cuda:0 --backend fa3_like,flashinfer_in_place --set plugins.path=flashinfer_in_place.py \\
        --shape mode=prefill,kv_len=8192,new_kv=cached
"""
from importlib.util import module_from_spec, spec_from_file_location
from os.path import dirname, join

# The file beside this one: `import flashinfer` is the package.
spec = spec_from_file_location("flashinfer_copies", join(dirname(__file__), "flashinfer.py"))
beside = module_from_spec(spec)
spec.loader.exec_module(beside)


class FlashInferInPlace(beside.FlashInfer):
    name = "flashinfer_in_place"
    doc = beside.FlashInfer.doc + ", pages in place"
    in_place = True
