/* SPDX-License-Identifier: Apache-2.0
 *
 * sanitizers.h: whether the compiler, gcc or clang, was asked for a sanitizer that has an allocator of its own.
 */
#ifndef HOST_BASE_SANITIZERS_H
#define HOST_BASE_SANITIZERS_H

#ifdef __has_feature
#define HAS_FEATURE(name) __has_feature(name)
#else
#define HAS_FEATURE(name) 0
#endif

#if defined __SANITIZE_ADDRESS__ || HAS_FEATURE(address_sanitizer)
#define HAS_ADDRESS_SANITIZER 1
#else
#define HAS_ADDRESS_SANITIZER 0
#endif

#if HAS_ADDRESS_SANITIZER || defined __SANITIZE_THREAD__ || HAS_FEATURE(thread_sanitizer)
#define HAS_SANITIZER 1
#else
#define HAS_SANITIZER 0
#endif

#endif /* HOST_BASE_SANITIZERS_H */
