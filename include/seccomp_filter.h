/* seccomp_filter.h - the instructions of a seccomp filter, for those who write one out for the kernel's classic BPF machine; see seccomp(2).
 *
 * FILTER_ARCH is the architecture whose numbers of calls a filter may look at; it is not defined where there is no filter: on other
 * architectures, and in builds with a sanitizer, whose threads and reports need more than the program does (they trace their own
 * process).  FILTER_SANITIZED says whether this is such a build: 0 or 1.
 *
 * Jumps count instructions to skip.  A pointer or a length is loaded by its low half: both architectures are little-endian. */
#ifndef SECCOMP_FILTER_H
#define SECCOMP_FILTER_H

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FILTER_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define FILTER_SANITIZED 1
#endif
#endif
#ifndef FILTER_SANITIZED
#define FILTER_SANITIZED 0
#endif

#if !FILTER_SANITIZED && defined(__x86_64__)
#define FILTER_ARCH AUDIT_ARCH_X86_64
#elif !FILTER_SANITIZED && defined(__aarch64__)
#define FILTER_ARCH AUDIT_ARCH_AARCH64
#endif

/* Four bytes of struct seccomp_data. */
static inline struct sock_filter filter_load(size_t offset)
{
    return (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)offset);
}

static inline struct sock_filter filter_if_equal(unsigned value, unsigned then_skip, unsigned else_skip)
{
    return (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, (unsigned char)then_skip, (unsigned char)else_skip);
}

static inline struct sock_filter filter_if_any_bit(unsigned bits, unsigned then_skip, unsigned else_skip)
{
    return (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, (unsigned char)then_skip, (unsigned char)else_skip);
}

/* The end: SECCOMP_RET_... */
static inline struct sock_filter filter_answer(unsigned action)
{
    return (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action);
}

#endif
