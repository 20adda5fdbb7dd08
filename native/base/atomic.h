/* SPDX-License-Identifier: Apache-2.0
 *
 * The only file that names a memory order. The name of each operation includes its order, so grep lists the orders in
 * use. No other file includes <stdatomic.h>.
 *
 *   load_relaxed    a hint, or a value that only this process writes
 *   load_acquire    the stores that preceded the writer's store_release are visible after this load
 *   store_relaxed   a value that only this process writes and that publishes nothing else
 *   store_release   a load_acquire that reads this value also sees the stores before it
 *   store_seq_cst   store_release, and no later load of this thread precedes it
 *   cas             compare and swap, seq_cst on success, acquire on failure; on failure, *expected is the value found
 *   exchange        swap, acq_rel
 *   set_pointer_once   cas of an empty pointer, acq_rel
 *   add, or_bits, and_bits   fetch-and-..., acq_rel; return the previous value
 *   barrier_store_load   no later load precedes an earlier store
 *   barrier_after_cas    the same, directly after a successful cas. It is free on x86, where a locked instruction is
 *                        already that barrier, and a real barrier elsewhere
 *   store_order_keep     the compiler moves no store across this. If a process is killed, a store after it implies the
 *                        stores before it. Not an instruction
 *
 * Each operation with an order has a label (for example "H1"), in a comment on its line. The two ends of an edge are in
 * one row of docs/explanation/memory-ordering.rst, and a model of tests/ordering has the operation under its label.
 */
#ifndef BASE_ATOMIC_H
#define BASE_ATOMIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef _Atomic uint64_t atomic_u64;
typedef _Atomic uint32_t atomic_u32;

typedef _Atomic(void *) atomic_pointer; /* private to this process */

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2, "atomics in shared memory must be lock-free");
_Static_assert(sizeof(atomic_u64) == 8 && sizeof(atomic_u32) == 4, "atomics must have the size of their value");

#define DEFINE_ATOMIC_OPERATIONS(suffix, type, value)                                                           \
    static inline value load_relaxed_##suffix(const type *cell)                                                 \
    {                                                                                                           \
        return atomic_load_explicit(cell, memory_order_relaxed);                                                \
    }                                                                                                           \
    static inline value load_acquire_##suffix(const type *cell)                                                 \
    {                                                                                                           \
        return atomic_load_explicit(cell, memory_order_acquire);                                                \
    }                                                                                                           \
    static inline void store_relaxed_##suffix(type *cell, value desired)                                        \
    {                                                                                                           \
        atomic_store_explicit(cell, desired, memory_order_relaxed);                                             \
    }                                                                                                           \
    static inline void store_release_##suffix(type *cell, value desired)                                        \
    {                                                                                                           \
        atomic_store_explicit(cell, desired, memory_order_release);                                             \
    }                                                                                                           \
    static inline void store_seq_cst_##suffix(type *cell, value desired)                                        \
    {                                                                                                           \
        atomic_store_explicit(cell, desired, memory_order_seq_cst);                                             \
    }                                                                                                           \
    static inline bool cas_##suffix(type *cell, value *expected, value desired)                                 \
    {                                                                                                           \
        return atomic_compare_exchange_strong_explicit(cell, expected, desired, memory_order_seq_cst,           \
                                                       memory_order_acquire);                                   \
    }                                                                                                           \
    static inline value exchange_##suffix(type *cell, value desired)                                            \
    {                                                                                                           \
        return atomic_exchange_explicit(cell, desired, memory_order_acq_rel);                                   \
    }                                                                                                           \
    static inline value add_##suffix(type *cell, value amount)                                                  \
    {                                                                                                           \
        return atomic_fetch_add_explicit(cell, amount, memory_order_acq_rel);                                   \
    }                                                                                                           \
    static inline value or_bits_##suffix(type *cell, value bits)                                                \
    {                                                                                                           \
        return atomic_fetch_or_explicit(cell, bits, memory_order_acq_rel);                                      \
    }                                                                                                           \
    static inline value and_bits_##suffix(type *cell, value bits)                                               \
    {                                                                                                           \
        return atomic_fetch_and_explicit(cell, bits, memory_order_acq_rel);                                     \
    }

DEFINE_ATOMIC_OPERATIONS(u64, atomic_u64, uint64_t)
DEFINE_ATOMIC_OPERATIONS(u32, atomic_u32, uint32_t)

static inline void *load_acquire_pointer(const atomic_pointer *cell)
{
    return atomic_load_explicit(cell, memory_order_acquire);
}

/* Returns false if the pointer was already set. */
static inline bool set_pointer_once(atomic_pointer *cell, void *desired)
{
    void *expected = NULL;
    return atomic_compare_exchange_strong_explicit(cell, &expected, desired, memory_order_acq_rel,
                                                   memory_order_acquire);
}

#if defined(__SANITIZE_THREAD__)
/* ThreadSanitizer does not model fences. A read-modify-write of a private cell has the same edge. */
static inline void barrier_store_load(void)
{
    static atomic_u32 cell;
    atomic_fetch_add_explicit(&cell, 1, memory_order_seq_cst);
}
#else
static inline void barrier_store_load(void)
{
    atomic_thread_fence(memory_order_seq_cst);
}
#endif

#if defined(__x86_64__)
static inline void barrier_after_cas(void)
{
    atomic_signal_fence(memory_order_seq_cst);
}
#else
static inline void barrier_after_cas(void)
{
    barrier_store_load();
}
#endif

static inline void store_order_keep(void)
{
    atomic_signal_fence(memory_order_seq_cst);
}

/* Fetch the cache line for this core alone, because a store to it follows. This is a hint, so any address is valid.
 * (Without -mprfchw the builtin requests the line for reading, and the store would request it again.) */
static inline void prefetch_for_write(const void *address)
{
#if defined(__x86_64__)
    __asm__ __volatile__("prefetchw (%0)" : : "r"(address));
#else
    __builtin_prefetch(address, 1);
#endif
}

static inline void spin_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

#endif
