/* SPDX-License-Identifier: Apache-2.0
 *
 * The results of the core's functions. Every fallible function returns `enum status`. The compiler warns if a caller
 * ignores it, and RETURN_IF_FAILED returns it to the next caller. A function that runs once per arena or process also
 * writes a sentence to the caller's `struct error`. A function that runs once per record returns the status alone.
 */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

/* X(name, sentence): a user reads the sentence if there is no more exact message. */
#define STATUS_TABLE(X)                                                                                    \
    X(OK, "no error")                                                                                      \
    X(INVALID, "an argument is out of range")                                                              \
    X(OS, "the operating system refused a call")                                                           \
    X(NOT_AN_ARENA, "this is not a shmaccum arena")                                                        \
    X(UNFINISHED, "the creation of the arena was not completed: remove it and create it again")            \
    X(OTHER_LAYOUT, "the arena has another layout: drain it with the version that made it, or remove it")   \
    X(TRUNCATED, "the arena file is shorter than its superblock states")                                     \
    X(FORBIDDEN, "the arena belongs to another user or is open to others")                                 \
    X(NO_ENTRY, "every process entry of the arena is taken")                                               \
    X(NO_WAITER, "every waiter entry of the arena is taken")                                               \
    X(NO_PARTITION, "the arena has no free entry for another topic or partition")                          \
    X(RECORD_TOO_LARGE, "the record is larger than the arena allows")                                      \
    X(EXHAUSTED, "no buffer is free")                                                                      \
    X(CLOSED, "the producer is closed")                                                                    \
    X(DETACHED, "this process is not attached to the arena")                                               \
    X(POISONED, "an invariant of the arena broke: it takes no more work and can be inspected")             \
    X(CORRUPT, "bytes in the arena contradict each other")                                                 \
    X(BUSY, "another process holds this role")                                                             \
    X(STALE, "the batch was completed already")                                                            \
    X(PENDING, "not completed yet")                                                                        \
    X(RESULT_EXPIRED, "the result was overwritten before it was read")                                     \
    X(TRY_AGAIN, "the state changed meanwhile")                                                            \
    X(REMOVED, "the arena was removed: it takes no more records")                                          \
    X(SHARE_USED, "this process holds all of the buffers that one process may have")                      \
    X(NO_TRANSACTION, "no transaction is open: begin one before you send to this arena")                   \
    X(TRANSACTION_ENDED, "the transaction takes no more records")                                          \
    X(FENCED, "another producer has the transactional_id of this arena, or the brokers aborted its last "  \
              "transaction at its timeout: init_transactions() takes the id back")                         \
    X(SYNC_FAILED, "forcing the arena to disk failed: nothing more is acknowledged, export its records")

enum status {
#define STATUS_ENUM(name, sentence) STATUS_##name,
    STATUS_TABLE(STATUS_ENUM)
#undef STATUS_ENUM
        STATUS_COUNT
};

#define MUST_USE __attribute__((warn_unused_result))

#define RETURN_IF_FAILED(expression)                    \
    do {                                                \
        enum status status_passed_up = (expression);    \
        if (status_passed_up != STATUS_OK) {            \
            return status_passed_up;                    \
        }                                               \
    } while (0)

enum { ERROR_MESSAGE_SIZE = 256 };

struct error {
    enum status status;
    int os_error; /* errno if status is STATUS_OS, else 0 */
    char message[ERROR_MESSAGE_SIZE];
};

/* Return the name ("EXHAUSTED") and the sentence of a status, or "UNKNOWN" if the value is out of range. */
const char *status_name(enum status status);
const char *status_sentence(enum status status);

/* Fills `error` (may be NULL) and returns `status`, so that a caller reports a failure in one statement. */
enum status error_set(struct error *error, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same for a failed system call. Stores errno, and appends its text from strerror. */
enum status error_set_os(struct error *error, const char *what);

#endif
