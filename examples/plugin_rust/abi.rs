// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// abi.rs: the part of attn_plugin.h that this example uses, written by hand. bindgen makes all of it:
//   bindgen --no-prepend-enum-name attn_plugin.h -- $(pkg-config --cflags attnhost-plugin)
use std::mem::size_of;
use std::os::raw::{c_char, c_void};

// A struct of the ABI, and its size as the headers have it.
macro_rules! abi {
    ($($name:ident = $size:literal { $($field:ident: $kind:ty),* $(,)? })*) => { $(
        #[repr(C)] #[derive(Clone, Copy)]
        pub struct $name { $(pub $field: $kind),* }
        const _: () = assert!(size_of::<$name>() == $size);
        unsafe impl Sync for $name {}
    )* };
}

pub type Status = i32;
pub type Text = *const c_char;
pub type Opaque = *const c_void;
pub type Slot = Option<unsafe extern "C" fn()>; // a function that this example leaves out

abi! {
    attn_error = 32 { struct_size: u32, code: i32, field: u32, capacity: u32, message: *mut u8, needed: u64 }
    attn_tensor = 144 {
        struct_size: u32, flags: u32, data: *mut u8, byte_offset: u64, device_type: i32, device_id: i32,
        dtype: u32, ndim: u32, alignment: u32, reserved: u32, shape: [i64; 6], strides: [i64; 6],
    }
    attn_layer = 16 { struct_size: u32, flags: u32, layer_id: i32, kv_buffer: i32 }
    attn_layer_group = 104 {
        struct_size: u32, kind: u32, attn_type: u32, flags: u32, kv_group: i32, state_group: i32,
        num_q_heads: i32, num_kv_heads: i32, head_dim: i32, v_head_dim: i32, window_left: i32,
        window_right: i32, attention_chunk: i32, sm_scale: f32, logit_cap: f32,
        kv_scale_granularity: u32, input_scale_granularity: u32, num_layers: u32,
        layers: *const attn_layer, mla: Opaque, linear: Opaque, sparse: Opaque,
    }
    attn_bounds = 48 {
        struct_size: u32, modes: u32, mask_kinds: u32, uses: u32, max_seqs: i32, max_tokens: i32,
        max_q_len: i32, max_kv_len: i32, max_sms: i32, max_prefix_levels: i32, max_kv_tokens: i64,
    }
    attn_device = 48 {
        struct_size: u32, r#type: i32, id: i32, sm: u32, num_sms: u32, shared_memory: u32,
        driver_version: u32, cpu_isa: u32, memory_bytes: u64, l2_bytes: u64,
    }
    attn_problem = 104 {
        struct_size: u32, graph_level: u32, device: *const attn_device, group: *const attn_layer_group,
        bounds: *const attn_bounds, kv_layout: Text, state_layout: Text, q_dtype: u32,
        new_kv_dtype: u32, kv_dtype: u32, out_dtype: u32, page_size: i32, required_traits: u32,
        mla_expanded: u32, tp_rank: i32, tp_size: i32, min_alignment: u32, kv_strides: u32,
        num_features: u32, features: *const Text,
    }
    attn_reason = 272 {
        struct_size: u32, code: u32, field: u32, with_field: u32, child: [u8; 32], got: [u8; 64],
        accepted: [u8; 160],
    }
    attn_verdict = 80 {
        struct_size: u32, supported: u32, num_reasons: u32, reasons_capacity: u32,
        reasons: *mut attn_reason, graph_level: u32, traits: u32, reads_new_kv_unquantised: u32,
        graph_seq_len_fill: i32, host_arrays: u32, reserved: u32, cost_hint: f64, device_bytes: u64,
        pinned_bytes: u64, host_bytes: u64,
    }
    attn_i32_array = 16 { host: *const i32, device: *const i32 }
    attn_i64_array = 16 { host: *const i64, device: *const i64 }
    attn_kv_batch = 152 {
        struct_size: u32, index_forms: u32, page_size: i32, req_to_token_stride: i32,
        block_table_stride: i32, reserved: i32, kv_lens: attn_i32_array, out_cache_loc: attn_i64_array,
        kv_new_indptr: attn_i32_array, req_to_token: attn_i32_array, block_table: attn_i32_array,
        kv_indptr: attn_i32_array, kv_indices: attn_i32_array, last_page_len: attn_i32_array,
    }
    attn_mask = 32 { struct_size: u32, kind: u32, bits: *const u8, indptr: attn_i64_array }
    attn_batch = 208 {
        struct_size: u32, mode: u32, num_seqs: i32, num_tokens: i32, num_real_seqs: i32,
        num_real_tokens: i32, num_decode_seqs: i32, first_decode_seq: i32, decode_q_len: i32,
        max_q_len: i32, max_kv_len: i32, num_kv_groups: u32, num_state_groups: u32,
        num_prefix_levels: u32, num_real_seqs_device: Opaque, num_real_tokens_device: Opaque,
        seq_lens: attn_i32_array, prefix_lens: attn_i32_array, q_indptr: attn_i32_array, positions: attn_i32_array,
        req_pool_indices: attn_i32_array, kv_groups: *const attn_kv_batch, state_groups: Opaque,
        mask: *const attn_mask, speculation: Opaque, multi_item: Opaque, shared_prefix: Opaque, sparse: Opaque,
    }
    attn_forward_args = 48 {
        struct_size: u32, flags: u32, num_operands: u32, num_scales: u32,
        operands: *const *const attn_tensor, scales: Opaque, num_named: u32, reserved: u32, named: Opaque,
    }
    attn_services = 96 {
        struct_size: u32, num_workers: u32, ctx: *mut c_void, log: Slot, trace_begin: Slot,
        trace_end: Slot, allocate: Slot, release: Slot,
        parallel_for: unsafe extern "C" fn(*mut c_void, i64, Task, *const c_void) -> Status,
        child_query: Slot, child_create: Slot, poll_error: Slot, get_extension: Slot,
    }
    attn_memory_size = 152 { struct_size: u32, reserved: u32, size: [u64; 9], alignment: [u64; 9] }
    attn_memory = 152 { struct_size: u32, reserved: u32, base: [*mut u8; 9], size: [u64; 9] }
    attn_backend_ops = 88 {
        struct_size: u32, reserved: u32,
        destroy: unsafe extern "C" fn(Opaque), prepare: Slot,
        index_forms: unsafe extern "C" fn(Opaque) -> u32,
        metadata_size: unsafe extern "C" fn(Opaque, u32, *const attn_bounds, *mut attn_memory_size, Error) -> Status,
        metadata_create: unsafe extern "C" fn(Opaque, u32, *const attn_bounds, *const attn_memory, *mut Opaque, Error) -> Status,
        init_forward_metadata: unsafe extern "C" fn(Opaque, *const attn_batch, Opaque, Error) -> Status,
        metadata_destroy: unsafe extern "C" fn(Opaque),
        forward_extend: unsafe extern "C" fn(Opaque, i32, *const attn_forward_args, Opaque, Error) -> Status,
        forward_decode: unsafe extern "C" fn(Opaque, i32, *const attn_forward_args, Opaque, Error) -> Status,
        get_extension: Slot,
    }
    attn_backend_type = 88 {
        struct_size: u32, flags: u32, name: Text, doc: Text, num_options: u32, num_layouts: u32,
        options: Opaque, layouts: *const Text, ops: *const attn_backend_ops,
        query: unsafe extern "C" fn(Opaque, Opaque, Opaque, *const attn_problem, *mut attn_verdict, Error) -> Status,
        create: unsafe extern "C" fn(Opaque, *const attn_problem, u32, Opaque, *const attn_services, *mut Opaque, Error) -> Status,
        num_operands: u32, reserved: u32, operands: Opaque,
    }
    attn_host_info = 40 { struct_size: u32, abi_major_min: u32, abi_major_max: u32, abi_minor: u32, name: Text, version: Text, source: Text }
    attn_plugin = 88 {
        struct_size: u32, abi_major: u32, abi_minor: u32, num_backends: u32, name: Text,
        version: Text, vendor: Text, doc: Text, build: Text,
        describe: unsafe extern "C" fn(u32, *mut *const attn_backend_type, Error) -> Status,
        init: Slot, fini: Slot, get_extension: Slot,
    }
}
pub type Error = *mut attn_error;
pub type Task = unsafe extern "C" fn(*const c_void, i64, u32) -> Status;

macro_rules! numbers {
    ($module:ident: $kind:ty { $($name:ident = $value:literal),* $(,)? }) => {
        pub mod $module { $(pub const $name: $kind = $value;)* }
    };
}
numbers! { status: i32 {
    OK = 0, INVALID_ARGUMENT = 1, UNSUPPORTED = 2, INCOMPATIBLE_VERSION = 3, BAD_STATE = 4,
    BUFFER_TOO_SMALL = 7, CAPTURE_UNSUPPORTED = 8,
} }
numbers! { dtype: u32 {
    F16 = 0x11002, F32 = 0x12002, BF16 = 0x11004, FP8_E4M3 = 0x1080a, FP8_E5M2 = 0x1080c,
} }
numbers! { role: u32 { Q = 0, K = 1, V = 2, OUT = 3, LSE = 4, K_CACHE = 5, V_CACHE = 6 } }
numbers! { reason: u32 {
    ARCH = 1, DTYPE = 3, HEAD_DIM = 5, PAGE_SIZE = 6, KV_LAYOUT = 7, LAYER_KIND = 8, ATTN_TYPE = 9,
    MASK_KIND = 10, CHUNK = 12, SINKS = 14, ALIBI = 15, SCALE_GRANULARITY = 16, MODE = 20, USES = 21,
    BOUNDS = 22, GRAPH_LEVEL = 23, DETERMINISM = 24, UNKNOWN_FEATURE = 27,
} }
numbers! { field: u32 {
    NONE = 0, DEVICE_TYPE = 1, KIND = 6, ATTN_TYPE = 7, NUM_Q_HEADS = 8, NUM_KV_HEADS = 9,
    HEAD_DIM = 11, V_HEAD_DIM = 12, WINDOW_LEFT = 13, WINDOW_RIGHT = 14, ATTENTION_CHUNK = 15,
    SM_SCALE = 16, LOGIT_CAP = 17, SINKS = 18, ALIBI = 19, SCALE_GRANULARITY = 20, NUM_LAYERS = 21,
    LAYERS = 22, KV_LAYOUT = 23, Q_DTYPE = 25, KV_DTYPE = 26, OUT_DTYPE = 27, PAGE_SIZE = 28,
    MODES = 29, MASK_KINDS = 30, USES = 31, MAX_SEQS = 32, MAX_TOKENS = 33, MAX_Q_LEN = 34,
    MAX_KV_LEN = 35, MAX_KV_TOKENS = 36, GRAPH_LEVEL = 37, REQUIRED_TRAITS = 38, FEATURE = 53,
    MEMORY = 56, OPERAND = 57, BATCH = 59, STRIDE = 60, LAYER_ID = 61, NEW_KV_DTYPE = 66,
    INPUT_SCALE_GRANULARITY = 67,
} }
