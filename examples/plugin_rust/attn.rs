// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// attn.rs: a small layer over abi.rs: sized structs, errors, verdicts, operands, tasks.
use crate::abi::*;
use std::ffi::CStr;
use std::fmt::{self, Write};
use std::mem::size_of;
use std::os::raw::c_void;

// ---- Sized structs: no byte beyond the smaller of both sizes is touched (STRUCT-02) ----

/// A copy of the other side's struct; what it does not have is zero.
pub unsafe fn read<T: Copy>(from: *const T) -> T {
    let mut copy = std::mem::zeroed::<T>();
    let (size, to) = ((*from.cast::<u32>() as usize).min(size_of::<T>()), std::ptr::addr_of_mut!(copy));
    std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), size);
    *to.cast::<u32>() = size_of::<T>() as u32;
    copy
}

/// Write into the other side's struct, whose struct_size stays.
pub unsafe fn write<T>(to: *mut T, from: &T) {
    let size = *to.cast::<u32>();
    let count = (size as usize).min(size_of::<T>());
    std::ptr::copy_nonoverlapping((from as *const T).cast::<u8>(), to.cast::<u8>(), count);
    *to.cast::<u32>() = size;
}

/// Element `index` of an array whose step is its first element's struct_size (STRUCT-05).
pub unsafe fn at<T>(array: *const T, index: u32) -> *const T {
    array.cast::<u8>().add(index as usize * *array.cast::<u32>() as usize).cast()
}

pub unsafe fn text<'a>(given: Text) -> &'a str {
    if given.is_null() { "absent" } else { CStr::from_ptr(given).to_str().unwrap_or("?") }
}

// ---- Errors and verdicts ----

/// Text cut at `room` bytes, between characters, and ended by a NUL.
struct Cut { to: *mut u8, room: usize, length: usize }
impl Write for Cut {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let mut count = s.len().min(self.room.saturating_sub(self.length + 1));
        while !s.is_char_boundary(count) { count -= 1; }
        unsafe {
            std::ptr::copy_nonoverlapping(s.as_ptr(), self.to.add(self.length), count);
            *self.to.add(self.length + count) = 0;
        }
        self.length += count;
        if count < s.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

pub unsafe fn fail(error: Error, code: Status, field: u32, message: fmt::Arguments) -> Status {
    if let Some(e) = error.as_mut() {
        (e.code, e.field) = (code, field);
        if !e.message.is_null() && e.capacity > 0 {
            *e.message = 0;
            let _ = Cut { to: e.message, room: e.capacity as usize, length: 0 }.write_fmt(message);
        }
    }
    code
}

/// Add the reason "field got: accepted ..." to a verdict (CAPS-04).
pub unsafe fn refuse(v: &mut attn_verdict, code: u32, field: u32, accepted: &str, got: fmt::Arguments) {
    let (index, mut reason) = (v.num_reasons, std::mem::zeroed::<attn_reason>());
    (v.supported, v.num_reasons) = (0, index + 1);
    if index >= v.reasons_capacity { return; }
    (reason.code, reason.field) = (code, field);
    let _ = Cut { to: reason.got.as_mut_ptr(), room: 64, length: 0 }.write_fmt(got);
    let _ = Cut { to: reason.accepted.as_mut_ptr(), room: 160, length: 0 }.write_str(accepted);
    write(at(v.reasons, index) as *mut attn_reason, &reason);
}

/// UNSUPPORTED in the words of the first reason.
pub unsafe fn require(v: &attn_verdict, first: &attn_reason, error: Error) -> Status {
    if v.supported == 1 { return status::OK; }
    let (got, accepted) = (text(first.got.as_ptr().cast()), text(first.accepted.as_ptr().cast()));
    fail(error, status::UNSUPPORTED, first.field, format_args!("field {}: {}: accepted {}", first.field, got, accepted))
}

/// A verdict with room for one reason, and that.
pub unsafe fn one_reason(first: &mut attn_reason) -> attn_verdict {
    let mut v = std::mem::zeroed::<attn_verdict>();
    first.struct_size = std::mem::size_of::<attn_reason>() as u32;
    (v.struct_size, v.supported, v.reasons_capacity, v.reasons) = (std::mem::size_of::<attn_verdict>() as u32, 1, 1, first);
    v
}

/// A data type in texts.
pub fn name(dtype: u32) -> &'static str {
    match dtype {
        0 => "absent", dtype::F16 => "f16", dtype::F32 => "f32", dtype::BF16 => "bf16",
        dtype::FP8_E4M3 => "fp8_e4m3", dtype::FP8_E5M2 => "fp8_e5m2", _ => "unknown",
    }
}

// ---- Batches, operands, tasks ----

/// `count` numbers of a pair of arrays, which on a processor lie in the same memory.
pub unsafe fn numbers<'a>(array: &attn_i32_array, count: usize) -> Option<&'a [i32]> {
    let given = if array.device.is_null() { array.host } else { array.device };
    (!given.is_null()).then(|| std::slice::from_raw_parts(given, count))
}

impl attn_tensor {
    /// Address of element [i][j][k][0].
    pub unsafe fn element(&self, i: i64, j: i64, k: i64) -> *mut u8 {
        let size = (self.dtype >> 8 & 0xff) as i64 / 8;
        let index = i * self.strides[0] + j * self.strides[1] + k * self.strides[2];
        self.data.offset(self.byte_offset as isize + (index * size) as isize)
    }
}

/// The operand of a role in this form; an extent of -1 takes any.
pub unsafe fn operand<'a>(args: &attn_forward_args, role: u32, dtype: u32, shape: &[i64], written: bool, error: Error) -> Result<&'a attn_tensor, Status> {
    let given = if role < args.num_operands { *args.operands.add(role as usize) } else { std::ptr::null() };
    let wrong = |field, what: &str| Err(fail(error, status::INVALID_ARGUMENT, field,
        format_args!("operand {}: {}", ["q", "k", "v", "out", "lse", "k_cache", "v_cache"][role as usize], what)));
    let Some(t) = given.as_ref() else { return wrong(field::OPERAND, "missing") };
    let (ndim, size) = (shape.len(), if dtype == dtype::BF16 { 2 } else { 4 });
    if t.dtype != dtype { return wrong(field::OPERAND, "another dtype than the problem has"); }
    if t.device_type != 1 { return wrong(field::OPERAND, "not in memory of the processor"); }
    if written && t.flags & 1 != 0 { return wrong(field::OPERAND, "read-only"); }
    if t.ndim as usize != ndim { return wrong(field::OPERAND, "another number of dimensions"); }
    let empty = t.shape[..ndim].contains(&0);
    for d in 0..ndim {
        if t.shape[d] < 0 || shape[d] >= 0 && t.shape[d] != shape[d] { return wrong(field::OPERAND, "another shape"); }
        if t.strides[d] < 0 || t.strides[d] == 0 && t.shape[d] > 1 && !empty { return wrong(field::STRIDE, "a stride below 1"); }
    }
    if t.strides[ndim - 1] != 1 && t.shape[ndim - 1] > 1 && !empty { return wrong(field::STRIDE, "innermost stride is not 1"); }
    if !empty && t.data.is_null() { return wrong(field::OPERAND, "data is NULL"); }
    if !empty && t.element(0, 0, 0) as usize % size != 0 { return wrong(field::OPERAND, "data is not aligned to its elements"); }
    Ok(t)
}

/// Run body(task, worker) for each task on the host's workers.
pub unsafe fn run<F: Fn(i64, u32) + Sync>(services: &attn_services, count: i64, body: &F) -> Status {
    unsafe extern "C" fn task<F: Fn(i64, u32)>(body: *const c_void, task: i64, worker: u32) -> Status {
        (*body.cast::<F>())(task, worker);
        status::OK
    }
    if count == 0 { return status::OK; }
    (services.parallel_for)(services.ctx, count, task::<F>, (body as *const F).cast())
}
