// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// example_rust: the backend of examples/plugin in Rust, without crates. One query and one head at a
// time: paged prefill and decode of decoder layers, f32 and bf16, kv.nhd/1, through block tables. The
// functions stand in the order in which a host calls them. docs/PLUGIN_GUIDE.md, section 13, lists
// what a plugin without the C helpers has to do itself.
#![allow(non_camel_case_types, dead_code)]
mod abi;
mod attn;
use abi::*;
use attn::*;

macro_rules! c { ($text:literal) => { concat!($text, "\0").as_ptr().cast() } }

// ---- Query: what it can do; every excess is a reason ----

const TRAITS: u32 = 1 | 2; // DETERMINISTIC, BATCH_INVARIANT: one task computes a row, in one order
const IDLE: u32 = 3;
const DECODE: u32 = 1;

/// INVALID_ARGUMENT for a softmax layer that makes no sense.
unsafe fn require_sense(g: &attn_layer_group, error: Error) -> Status {
    let kv_heads = g.num_kv_heads;
    let rules = [
        (kv_heads >= 1, field::NUM_KV_HEADS, kv_heads as f32, "1 and more"),
        (g.num_q_heads >= 1 && g.num_q_heads % kv_heads.max(1) == 0, field::NUM_Q_HEADS, g.num_q_heads as f32,
         "multiples of num_kv_heads"),
        (g.sm_scale.is_finite(), field::SM_SCALE, g.sm_scale, "finite"),
        (g.logit_cap.is_finite() && g.logit_cap >= 0.0, field::LOGIT_CAP, g.logit_cap, "0 and more, finite"),
        (g.window_left >= -1, field::WINDOW_LEFT, g.window_left as f32, "-1 and more"),
        (g.window_right >= -1, field::WINDOW_RIGHT, g.window_right as f32, "-1 and more"),
        (g.attention_chunk >= 0, field::ATTENTION_CHUNK, g.attention_chunk as f32, "0 and more"),
    ];
    match rules.iter().find(|rule| g.kind == 0 && !rule.0) {
        Some((_, field, got, accepted)) => fail(error, status::INVALID_ARGUMENT, *field,
            format_args!("layer group: {}: accepted {}", got, accepted)),
        None => status::OK,
    }
}

unsafe fn check_bounds(b: &attn_bounds, v: &mut attn_verdict) {
    let sets = [
        (reason::MODE, field::MODES, b.modes, 0b1111, "extend, decode, mixed, idle"),
        (reason::MASK_KIND, field::MASK_KINDS, b.mask_kinds, 0b11, "layer, none"),
        (reason::USES, field::USES, b.uses, 0b1_1111_1100,
         "shared_prefix, unsaved_kv, lse, omit_sink, decodes_first, decode_drafts, shared_new_kv"),
    ];
    for (code, field, got, most, accepted) in sets {
        if got & !most != 0 { refuse(v, code, field, accepted, format_args!("{:#x}", got)); }
    }
    let limits = [b.max_seqs as i64, b.max_tokens as i64, b.max_q_len as i64, b.max_kv_len as i64, b.max_kv_tokens];
    for (field, got) in (field::MAX_SEQS..).zip(limits) {
        if got < 0 { refuse(v, reason::BOUNDS, field, "0..2147483647", format_args!("{}", got)); }
    }
}

unsafe extern "C" fn query(_type: Opaque, _options: Opaque, _services: Opaque, problem: *const attn_problem,
                           answer: *mut attn_verdict, error: Error) -> Status {
    if problem.is_null() || (*problem).group.is_null() || (*problem).bounds.is_null() || (*problem).device.is_null() {
        return fail(error, status::INVALID_ARGUMENT, field::NONE, format_args!("problem, group, bounds or device is NULL"));
    }
    let p = read(problem);
    let (g, b, d) = (read(p.group), read(p.bounds), read(p.device));
    let status = require_sense(&g, error);
    if status != status::OK { return status; }
    let (given, mut v) = (read(answer), std::mem::zeroed::<attn_verdict>());
    (v.supported, v.reasons_capacity, v.reasons) = (1, given.reasons_capacity, given.reasons);
    let served = |t: &u32| *t == dtype::F32 || *t == dtype::BF16;
    let one = [p.q_dtype, p.kv_dtype, dtype::F32].into_iter().find(served).unwrap();
    let layers = (0..g.num_layers).fold(0, |flags, n| flags | (*at(g.layers, n)).flags);
    let rules: [(bool, u32, u32, &str, &dyn std::fmt::Display); 19] = [
        (d.r#type == 1, reason::ARCH, field::DEVICE_TYPE, "cpu", &d.r#type),
        (text(p.kv_layout) == "kv.nhd/1", reason::KV_LAYOUT, field::KV_LAYOUT, "kv.nhd/1", &text(p.kv_layout)),
        (matches!(g.head_dim, 1..=65536), reason::HEAD_DIM, field::HEAD_DIM, "1..65536", &g.head_dim),
        (matches!(g.v_head_dim, 1..=65536), reason::HEAD_DIM, field::V_HEAD_DIM, "1..65536", &g.v_head_dim),
        (p.page_size >= 1, reason::PAGE_SIZE, field::PAGE_SIZE, "1..2147483647", &p.page_size),
        (g.attention_chunk == 0, reason::CHUNK, field::ATTENTION_CHUNK, "0", &g.attention_chunk),
        (g.kind == 0, reason::LAYER_KIND, field::KIND, "softmax", &g.kind),
        (g.attn_type == 0, reason::ATTN_TYPE, field::ATTN_TYPE, "decoder", &g.attn_type),
        (g.kv_scale_granularity == 0, reason::SCALE_GRANULARITY, field::SCALE_GRANULARITY, "none", &g.kv_scale_granularity),
        (g.flags & 1 == 0, reason::SINKS, field::SINKS, "0", &1),
        (g.flags & 2 == 0, reason::ALIBI, field::ALIBI, "0", &1),
        (g.flags & !3 == 0, reason::UNKNOWN_FEATURE, field::FEATURE, "absent", &g.flags),
        (p.q_dtype == one, reason::DTYPE, field::Q_DTYPE, name(one), &name(p.q_dtype)),
        (p.kv_dtype == one, reason::DTYPE, field::KV_DTYPE, name(one), &name(p.kv_dtype)),
        (p.out_dtype == one, reason::DTYPE, field::OUT_DTYPE, name(one), &name(p.out_dtype)),
        (p.new_kv_dtype == 0 || p.new_kv_dtype == one, reason::DTYPE, field::NEW_KV_DTYPE, name(one), &name(p.new_kv_dtype)),
        (g.input_scale_granularity == 0, reason::SCALE_GRANULARITY, field::INPUT_SCALE_GRANULARITY, "none",
         &g.input_scale_granularity),
        (layers & !1 == 0, reason::UNKNOWN_FEATURE, field::LAYERS, "kv_read_only", &layers),
        (p.graph_level == 0, reason::GRAPH_LEVEL, field::GRAPH_LEVEL, "0", &p.graph_level),
    ];
    for (holds, code, field, accepted, got) in rules {
        if !holds { refuse(&mut v, code, field, accepted, format_args!("{}", got)); }
    }
    if p.required_traits & !TRAITS != 0 {
        refuse(&mut v, reason::DETERMINISM, field::REQUIRED_TRAITS, "deterministic, batch_invariant", format_args!("{:#x}", p.required_traits));
    }
    for n in 0..p.num_features as usize {
        refuse(&mut v, reason::UNKNOWN_FEATURE, field::FEATURE, "absent", format_args!("{}", text(*p.features.add(n))));
    }
    check_bounds(&b, &mut v);
    (v.traits, v.cost_hint) = (TRAITS, 4.0);
    write(answer, &v);
    status::OK
}

// ---- Instance: the layers ----

struct Layer { id: i32, dtype: u32, group: attn_layer_group }
struct Instance { services: *const attn_services, layers: Vec<Layer>, kv_groups: u32, worker_bytes: u64 }

unsafe extern "C" fn create(kind: Opaque, problems: *const attn_problem, num_problems: u32, options: Opaque,
                            services: *const attn_services, made: *mut Opaque, error: Error) -> Status {
    if problems.is_null() || num_problems == 0 || services.is_null() || made.is_null() {
        return fail(error, status::INVALID_ARGUMENT, field::NONE, format_args!("problems, services or instance is missing"));
    }
    let mut instance = Instance { services, layers: Vec::new(), kv_groups: 0, worker_bytes: 0 };
    for n in 0..num_problems {
        let mut first = std::mem::zeroed::<attn_reason>();
        let mut v = one_reason(&mut first);
        let mut status = query(kind, options, services.cast(), at(problems, n), &mut v, error);
        if status == status::OK { status = require(&v, &first, error); }
        if status != status::OK { return status; }
        let problem = read(at(problems, n));
        let group = read(problem.group);
        for l in 0..group.num_layers {
            let id = (*at(group.layers, l)).layer_id;
            if id < 0 || instance.layers.iter().any(|other| other.id == id) {
                return fail(error, status::INVALID_ARGUMENT, field::LAYER_ID, format_args!("layer_id {} twice, or below 0", id));
            }
            instance.layers.push(Layer { id, dtype: problem.q_dtype, group });
        }
        instance.kv_groups = instance.kv_groups.max(group.kv_group as u32 + 1);
        instance.worker_bytes = instance.worker_bytes.max((group.v_head_dim as u64 * 4 + 63) / 64 * 64);
    }
    *made = Box::into_raw(Box::new(instance)) as Opaque;
    status::OK
}

unsafe extern "C" fn destroy(instance: Opaque) {
    if !instance.is_null() { drop(Box::from_raw(instance as *mut Instance)); }
}

unsafe extern "C" fn index_forms(_instance: Opaque) -> u32 { 2 } // block tables

// ---- Metadata: a batch within bounds; scratch [num_workers, max_v_head_dim] is the host's ----

struct Metadata {
    instance: *const Instance, bounds: attn_bounds, batch: Option<attn_batch>, kv: Vec<attn_kv_batch>,
    rows: Vec<(i32, i64)>, // sequence (-1 = padding) and position
    scratch: usize, mask_kind: u32, // the batch's structs are gone after planning (PURE-06)
}

/// Bytes of scratch, and the bounds, of metadata that can be made.
unsafe fn measure(i: &Instance, kind: u32, bounds: *const attn_bounds, error: Error) -> Result<(u64, attn_bounds), Status> {
    if kind > 1 || bounds.is_null() {
        return Err(fail(error, status::INVALID_ARGUMENT, field::NONE, format_args!("kind {}: accepted 0, 1, and bounds", kind)));
    }
    if kind == 1 {
        return Err(fail(error, status::CAPTURE_UNSUPPORTED, field::GRAPH_LEVEL, format_args!("nothing can be captured on a processor")));
    }
    let (bounds, mut first) = (read(bounds), std::mem::zeroed::<attn_reason>());
    let mut v = one_reason(&mut first);
    check_bounds(&bounds, &mut v);
    match require(&v, &first, error) {
        status::OK => Ok(((*i.services).num_workers as u64 * i.worker_bytes, bounds)),
        status => Err(status),
    }
}

unsafe extern "C" fn metadata_size(i: Opaque, kind: u32, bounds: *const attn_bounds, size: *mut attn_memory_size, error: Error) -> Status {
    let mut size_needed = std::mem::zeroed::<attn_memory_size>();
    match measure(&*(i as *const Instance), kind, bounds, error) {
        Ok((scratch, _)) => (size_needed.size[0], size_needed.alignment[0]) = (scratch, 64), // DEVICE_SCRATCH
        Err(status) => return status,
    }
    write(size, &size_needed);
    status::OK
}

unsafe extern "C" fn metadata_create(i: Opaque, kind: u32, bounds: *const attn_bounds, memory: *const attn_memory,
                                     made: *mut Opaque, error: Error) -> Status {
    let instance = &*(i as *const Instance);
    let (scratch, bounds) = match measure(instance, kind, bounds, error) { Ok(found) => found, Err(status) => return status };
    let (base, size) = ((*memory).base[0], (*memory).size[0]);
    if size < scratch || base.is_null() {
        if !error.is_null() && (*error).struct_size >= 32 { (*error).needed = scratch; }
        return fail(error, status::BUFFER_TOO_SMALL, field::MEMORY, format_args!("device scratch is {} bytes: accepted {} and more", size, scratch));
    }
    if base as usize % 64 != 0 {
        return fail(error, status::INVALID_ARGUMENT, field::MEMORY, format_args!("device scratch is not aligned to 64 bytes"));
    }
    *made = Box::into_raw(Box::new(Metadata {
        instance, bounds, batch: None, kv: Vec::with_capacity(instance.kv_groups as usize),
        rows: Vec::with_capacity(bounds.max_tokens as usize), scratch: base as usize, mask_kind: 0,
    })) as Opaque;
    status::OK
}

unsafe extern "C" fn metadata_destroy(metadata: Opaque) {
    if !metadata.is_null() { drop(Box::from_raw(metadata as *mut Metadata)); }
}

/// INVALID_ARGUMENT for a batch that is beyond the bounds or not whole.
unsafe fn check_batch(m: &Metadata, b: &attn_batch, error: Error) -> Result<(), Status> {
    let (bounds, seqs, kind) = (&m.bounds, b.num_seqs, m.mask_kind);
    let indptr = if b.mode == DECODE { None } else { numbers(&b.q_indptr, seqs as usize + 1) };
    let falls = |rows: &[i32]| rows[0] < 0 || rows.windows(2).any(|two| two[1] < two[0]);
    let covered = if seqs > 0 { indptr.map_or(0, |rows| rows[seqs as usize] - rows[0]) } else { 0 };
    let within = |got: i32, most: i32| (0..=most).contains(&got);
    let rules = [
        (within(seqs, bounds.max_seqs), field::MAX_SEQS, seqs, "num_seqs"),
        (within(b.num_tokens, bounds.max_tokens), field::MAX_TOKENS, b.num_tokens, "num_tokens"),
        (within(b.max_q_len, bounds.max_q_len), field::MAX_Q_LEN, b.max_q_len, "max_q_len"),
        (within(b.max_kv_len, bounds.max_kv_len), field::MAX_KV_LEN, b.max_kv_len, "max_kv_len"),
        (b.mode <= IDLE && (bounds.modes | 1 << IDLE) >> b.mode & 1 == 1, field::BATCH, b.mode as i32, "mode"),
        (b.mode != DECODE || b.num_tokens == seqs, field::BATCH, b.num_tokens, "num_tokens in DECODE"),
        (kind < 2 && bounds.mask_kinds >> kind & 1 == 1, field::MASK_KINDS, kind as i32, "mask kind"),
        (b.positions.device.is_null() && b.positions.host.is_null(), field::USES, 1, "positions"),
        (b.multi_item.is_null(), field::USES, 1, "multi_item"),
        (b.num_kv_groups >= (*m.instance).kv_groups, field::BATCH, b.num_kv_groups as i32, "num_kv_groups"),
        (b.mode == DECODE || seqs == 0 || !indptr.map_or(true, falls), field::BATCH, seqs, "q_indptr falls, or is missing"),
        (covered <= b.num_tokens, field::BATCH, covered, "rows of q_indptr"),
    ];
    match rules.iter().find(|rule| !rule.0) {
        Some((_, field, got, what)) => Err(fail(error, status::INVALID_ARGUMENT, *field,
            format_args!("{} {}: not within the bounds of this metadata, or not served", what, got))),
        None => Ok(()),
    }
}

fn kv_lens<'a>(b: &attn_batch, kv: &attn_kv_batch) -> &'a [i32] {
    let count = b.num_seqs as usize;
    unsafe { numbers(&kv.kv_lens, count).or(numbers(&b.seq_lens, count)).unwrap_or(&[]) }
}

unsafe fn check_kv(m: &Metadata, b: &attn_batch, kv: &attn_kv_batch, error: Error) -> Result<(), Status> {
    let (page, mut tokens) = (kv.page_size as i64, 0);
    if page < 1 {
        return Err(fail(error, status::INVALID_ARGUMENT, field::PAGE_SIZE, format_args!("page_size {}: accepted 1 and more", page)));
    }
    for (s, len) in kv_lens(b, kv).iter().enumerate() {
        if !(0..=m.bounds.max_kv_len).contains(len) {
            return Err(fail(error, status::INVALID_ARGUMENT, field::MAX_KV_LEN,
                format_args!("sequence {} of {} keys: accepted 0..{}", s, len, m.bounds.max_kv_len)));
        }
        tokens += (*len as i64 + page - 1) / page * page;
    }
    if tokens <= m.bounds.max_kv_tokens { return Ok(()); }
    Err(fail(error, status::INVALID_ARGUMENT, field::MAX_KV_TOKENS,
        format_args!("{} keys in whole pages: accepted 0..{}", tokens, m.bounds.max_kv_tokens)))
}

unsafe fn plan(m: &mut Metadata, given: *const attn_batch, error: Error) -> Result<(), Status> {
    let b = read(given);
    (m.batch, m.mask_kind) = (None, if b.mask.is_null() { 0 } else { (*b.mask).kind });
    check_batch(m, &b, error)?;
    m.kv.clear(); // neither list allocates: create made room for all that the bounds allow
    m.rows.clear();
    for g in 0..(*m.instance).kv_groups {
        let kv = read(at(b.kv_groups, g));
        if (*m.instance).layers.iter().any(|layer| layer.group.kv_group == g as i32) { check_kv(m, &b, &kv, error)?; }
        m.kv.push(kv);
    }
    for s in 0..b.num_seqs as usize {
        let (first, count) = if b.mode == DECODE {
            (numbers(&b.seq_lens, s + 1).unwrap()[s] - 1, 1)
        } else {
            let rows = numbers(&b.q_indptr, s + 2).unwrap();
            (numbers(&b.prefix_lens, s + 1).unwrap()[s], rows[s + 1] - rows[s])
        };
        m.rows.extend((0..count).map(|t| (s as i32, (first + t) as i64)));
    }
    m.rows.resize(b.num_tokens as usize, (-1, 0));
    m.batch = Some(b);
    Ok(())
}

unsafe extern "C" fn init_forward_metadata(m: Opaque, batch: *const attn_batch, _stream: Opaque, error: Error) -> Status {
    plan(&mut *(m as *mut Metadata), batch, error).err().unwrap_or(status::OK)
}

// ---- Forward: one layer ----

unsafe fn load(base: *const u8, dtype: u32, index: i32) -> f32 {
    match dtype {
        dtype::F32 => *base.cast::<f32>().add(index as usize),
        _ => f32::from_bits((*base.cast::<u16>().add(index as usize) as u32) << 16),
    }
}

/// bf16: to nearest, ties to even; NaN stays NaN.
unsafe fn store(base: *mut u8, dtype: u32, index: i32, value: f32) {
    if dtype == dtype::F32 { *base.cast::<f32>().add(index as usize) = value; return; }
    let bits = value.to_bits();
    let bits = if value.is_nan() { bits | 0x40_0000 } else { bits + 0x7fff + (bits >> 16 & 1) };
    *base.cast::<u16>().add(index as usize) = (bits >> 16) as u16;
}

/// One call, as its tasks see it.
struct Work<'a> {
    m: &'a Metadata, b: &'a attn_batch, layer: &'a Layer, kv: &'a attn_kv_batch, new: Option<(&'a attn_tensor, &'a attn_tensor)>,
    q: &'a attn_tensor, out: &'a attn_tensor, lse: Option<&'a attn_tensor>, k_cache: &'a attn_tensor, v_cache: &'a attn_tensor,
}
unsafe impl Sync for Work<'_> {}

impl Work<'_> {
    /// Rows of k and v that are sequence s's: the first, and how many.
    unsafe fn new_rows(&self, s: usize) -> (i64, i64) {
        let rows = numbers(&self.kv.kv_new_indptr, s + 2);
        let rows = if self.b.mode == DECODE { rows } else { rows.or(numbers(&self.b.q_indptr, s + 2)) };
        rows.map_or((s as i64, 1), |rows| (rows[s] as i64, (rows[s + 1] - rows[s]) as i64))
    }

    unsafe fn save(&self, k: &attn_tensor, v: &attn_tensor) {
        let (g, size, page) = (&self.layer.group, if self.layer.dtype == dtype::BF16 { 2 } else { 4 }, self.kv.page_size as i64);
        let slots = if self.kv.out_cache_loc.device.is_null() { self.kv.out_cache_loc.host } else { self.kv.out_cache_loc.device };
        for row in (0..self.b.num_seqs as usize).map(|s| self.new_rows(s)).flat_map(|(first, count)| first..first + count) {
            let slot = *slots.add(row as usize);
            for h in (0..g.num_kv_heads as i64).filter(|_| slot >= 0) {
                let to = (self.k_cache.element(slot / page, slot % page, h), self.v_cache.element(slot / page, slot % page, h));
                std::ptr::copy_nonoverlapping(k.element(row, h, 0), to.0, g.head_dim as usize * size);
                std::ptr::copy_nonoverlapping(v.element(row, h, 0), to.1, g.v_head_dim as usize * size);
            }
        }
    }

    /// One row, one head: an online softmax. A row that sees no key is 0, with an LSE of -inf (MEAN-14).
    unsafe fn attend(&self, task: i64, worker: u32) {
        let (g, dtype, page) = (&self.layer.group, self.layer.dtype, self.kv.page_size as i64);
        let (t, head) = (task / g.num_q_heads as i64, task % g.num_q_heads as i64);
        let kv_head = head / (g.num_q_heads / g.num_kv_heads) as i64;
        let (seq, position) = self.m.rows[t as usize];
        let q_row = t + if self.b.mode == DECODE { 0 } else { numbers(&self.b.q_indptr, 1).map_or(0, |rows| rows[0] as i64) };
        let (mut end, mut first_new, mut new_row, mut table) = (0, 0, 0, &[][..]);
        if seq >= 0 {
            let (first, count) = self.new_rows(seq as usize);
            end = kv_lens(self.b, self.kv)[seq as usize] as i64;
            (first_new, new_row) = (end - count, first);
            let stride = self.kv.block_table_stride as usize;
            table = &numbers(&self.kv.block_table, (seq as usize + 1) * stride).unwrap()[seq as usize * stride..];
        }
        let first = if g.window_left >= 0 { (position - g.window_left as i64).max(0) } else { 0 };
        if self.m.mask_kind == 0 && g.window_right >= 0 { end = end.min(position + g.window_right as i64 + 1); }

        let scratch = (self.m.scratch + worker as usize * (*self.m.instance).worker_bytes as usize) as *mut f32;
        let sums = std::slice::from_raw_parts_mut(scratch, g.v_head_dim as usize);
        let (q, mut max, mut total) = (self.q.element(q_row, head, 0), f32::NEG_INFINITY, 0f32);
        sums.fill(0.0);
        for j in first..end {
            let (key, value) = match self.new { // new ones are read where they are given: not all need be saved
                Some((k, v)) if j >= first_new => (k.element(new_row + j - first_new, kv_head, 0), v.element(new_row + j - first_new, kv_head, 0)),
                _ => {
                    let at = (table[(j / page) as usize] as i64, j % page);
                    (self.k_cache.element(at.0, at.1, kv_head), self.v_cache.element(at.0, at.1, kv_head))
                }
            };
            let mut s = (0..g.head_dim).fold(0f32, |sum, d| sum + load(q, dtype, d) * load(key, dtype, d)) * g.sm_scale;
            if g.logit_cap > 0.0 { s = g.logit_cap * (s / g.logit_cap).tanh(); }
            if s == f32::NEG_INFINITY { continue; } // weighs nothing; and -inf - -inf is no number
            let now = if s > max { s } else { max };
            let (kept, p) = ((max - now).exp(), (s - now).exp());
            total = total * kept + p;
            for (d, sum) in sums.iter_mut().enumerate() { *sum = *sum * kept + p * load(value, dtype, d as i32); }
            max = now;
        }
        let out = self.out.element(q_row, head, 0);
        for (d, sum) in sums.iter().enumerate() { store(out, dtype, d as i32, if total != 0.0 { sum / total } else { 0.0 }); }
        if let Some(lse) = self.lse { *lse.element(q_row, head, 0).cast::<f32>() = max + total.ln(); }
    }
}

unsafe fn run_layer(m: &Metadata, layer_id: i32, args: &attn_forward_args, error: Error) -> Result<Status, Status> {
    let Some(b) = &m.batch else { return Err(fail(error, status::BAD_STATE, field::NONE, format_args!("no batch is planned"))) };
    let Some(layer) = (*m.instance).layers.iter().find(|layer| layer.id == layer_id) else {
        return Err(fail(error, status::INVALID_ARGUMENT, field::LAYER_ID, format_args!("layer_id {} is unknown", layer_id)));
    };
    if args.flags & 4 != 0 {
        return Err(fail(error, status::CAPTURE_UNSUPPORTED, field::NONE, format_args!("nothing can be captured on a processor")));
    }
    let given = |role: u32| role < args.num_operands && !(*args.operands.add(role as usize)).is_null();
    let (g, dtype, is_new) = (&layer.group, layer.dtype, given(role::K) || given(role::V));
    let (heads, kv_heads, dim, v_dim) = (g.num_q_heads as i64, g.num_kv_heads as i64, g.head_dim as i64, g.v_head_dim as i64);
    let saves = is_new && args.flags & 1 != 0;
    let one = |role, dtype, shape: &[i64], written| operand(args, role, dtype, shape, written, error);
    let work = Work {
        m, b, layer, kv: &m.kv[g.kv_group as usize],
        q: one(role::Q, dtype, &[-1, heads, dim], false)?,
        out: one(role::OUT, dtype, &[-1, heads, v_dim], true)?,
        new: if is_new { Some((one(role::K, dtype, &[-1, kv_heads, dim], false)?, one(role::V, dtype, &[-1, kv_heads, v_dim], false)?)) } else { None },
        lse: if given(role::LSE) { Some(one(role::LSE, dtype::F32, &[-1, heads], true)?) } else { None },
        k_cache: one(role::K_CACHE, dtype, &[-1, -1, kv_heads, dim], saves)?,
        v_cache: one(role::V_CACHE, dtype, &[-1, -1, kv_heads, v_dim], saves)?,
    };
    if let (true, Some((k, v))) = (saves, work.new) { work.save(k, v); }
    Ok(run(&*(*m.instance).services, b.num_tokens as i64 * heads, &|task, worker| work.attend(task, worker)))
}

unsafe extern "C" fn forward(m: Opaque, layer_id: i32, args: *const attn_forward_args, _stream: Opaque, error: Error) -> Status {
    match run_layer(&*(m as *const Metadata), layer_id, &read(args), error) {
        Ok(status::OK) => status::OK,
        Ok(status) => fail(error, status, field::NONE, format_args!("parallel_for failed with status {}", status)),
        Err(status) => status,
    }
}

// ---- Tables and the entry ----

struct Layouts([Text; 1]);
unsafe impl Sync for Layouts {}
static LAYOUTS: Layouts = Layouts([c!("kv.nhd/1")]);

static OPS: attn_backend_ops = attn_backend_ops {
    struct_size: 88, reserved: 0, destroy, prepare: None, index_forms, metadata_size, metadata_create, init_forward_metadata,
    metadata_destroy, forward_extend: forward, forward_decode: forward, get_extension: None,
};

static TYPE: attn_backend_type = attn_backend_type {
    struct_size: 88, flags: 0, name: c!("example_rust"), doc: c!("paged attention one row at a time, in Rust; an example to copy"),
    num_options: 0, num_layouts: 1, options: std::ptr::null(), layouts: LAYOUTS.0.as_ptr(), ops: &OPS, query, create,
    num_operands: 0, reserved: 0, operands: std::ptr::null(),
};

unsafe extern "C" fn describe(index: u32, described: *mut *const attn_backend_type, error: Error) -> Status {
    if index > 0 { return fail(error, status::INVALID_ARGUMENT, field::NONE, format_args!("backend {}: accepted 0", index)); }
    *described = &TYPE;
    status::OK
}

/// # Safety
/// The host calls it as attn_plugin.h says.
#[no_mangle]
pub unsafe extern "C" fn attn_plugin_entry(host: *const attn_host_info, plugin: *mut attn_plugin, error: Error) -> Status {
    if (*host).abi_major_min > 0 {
        return fail(error, status::INCOMPATIBLE_VERSION, field::NONE,
            format_args!("ABI major {}..{}: accepted 0", (*host).abi_major_min, (*host).abi_major_max));
    }
    write(plugin, &attn_plugin {
        struct_size: 0, abi_major: 0, abi_minor: 2, num_backends: 1, name: c!("example_rust"), version: c!("1.0"), vendor: c!("you"),
        doc: c!("a plugin in Rust, built against the headers alone"), build: c!("rustc"), describe, init: None, fini: None, get_extension: None,
    });
    status::OK
}
