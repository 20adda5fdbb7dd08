/* SPDX-License-Identifier: Apache-2.0
 *
 * The only file that names a memory order. Each operation carries its order in its name, so the set of orders in use
 * can be listed with grep, and nobody else includes <stdatomic.h>.
 *
 *   load_relaxed    a hint, or a value that only we write
 *   load_acquire    what the writer stored before its store_release is visible after this
 *   store_relaxed   a value that only we write and whose readers need nothing else
 *   store_release   what we stored before is visible to whoever load_acquires this
 *   store_seq_cst   store_release, and no later load of ours is performed before it (one side of a Dekker pair)
 *   cas             compare and swap, seq_cst on success, acquire on failure; on failure *expected is what was found
 *   exchange        swap, acq_rel
 *   set_pointer_once   cas of an empty pointer, acq_rel
 *   add, or_bits, and_bits   fetch-and-..., acq_rel; answer the value before
 *   barrier_store_load   no later load is performed before an earlier store
 *   barrier_after_cas    the same, placed directly behind a successful cas: free on x86, where a locked instruction is
 *                        already that barrier, and a real one elsewhere
 *   store_order_keep     the compiler moves no store across: a process that is killed has done the ones before it if it
 *                        has done one behind it. No instruction
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

typedef _Atomic(void *) atomic_pointer; /* of this process */

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

/* False: somebody else has set it. */
static inline bool set_pointer_once(atomic_pointer *cell, void *desired)
{
    void *expected = NULL;
    return atomic_compare_exchange_strong_explicit(cell, &expected, desired, memory_order_acq_rel,
                                                   memory_order_acquire);
}

#if defined(__SANITIZE_THREAD__)
/* ThreadSanitizer does not model fences: a read-modify-write on a cell of our own gives it the same edge. */
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

/* We shall write to this line soon: bring it here, to this core alone. A hint; any address will do. (Without -mprfchw
 * the builtin asks for a line to read, and the store would have to ask again.) */
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
