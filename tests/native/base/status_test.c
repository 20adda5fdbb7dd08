/* SPDX-License-Identifier: Apache-2.0 */
#include "base/status.h"

#include "testing.h"

#include <errno.h>

static enum status pass_up(enum status status, unsigned *after_count)
{
    RETURN_IF_FAILED(status);
    *after_count += 1;
    return STATUS_OK;
}

TEST(every_status_has_a_name_and_a_sentence)
{
    for (int value = 0; value < STATUS_COUNT; value++) {
        EXPECT(strlen(status_name((enum status)value)) > 0);
        EXPECT(strlen(status_sentence((enum status)value)) > 0);
    }
    EXPECT(strcmp(status_name(STATUS_OK), "OK") == 0);
    EXPECT(strcmp(status_name(STATUS_TRY_AGAIN), "TRY_AGAIN") == 0);
    EXPECT(strcmp(status_sentence(STATUS_EXHAUSTED), "no buffer is free") == 0);
}

TEST(names_distinguish_statuses)
{
    for (int one = 0; one < STATUS_COUNT; one++) {
        for (int other = one + 1; other < STATUS_COUNT; other++) {
            EXPECT(strcmp(status_name((enum status)one), status_name((enum status)other)) != 0);
        }
    }
}

TEST(a_status_out_of_range_is_unknown)
{
    EXPECT(strcmp(status_name(STATUS_COUNT), "UNKNOWN") == 0);
    EXPECT(strcmp(status_sentence(STATUS_COUNT), "unknown status") == 0);
}

TEST(return_if_failed_passes_a_failure_up_and_lets_success_continue)
{
    unsigned after_count = 0;
    EXPECT_STATUS(pass_up(STATUS_STALE, &after_count), STATUS_STALE);
    EXPECT_EQ_U64(after_count, 0);
    EXPECT_STATUS(pass_up(STATUS_OK, &after_count), STATUS_OK);
    EXPECT_EQ_U64(after_count, 1);
}

TEST(error_set_fills_the_sentence_and_forgets_an_older_errno)
{
    struct error error = {.os_error = EIO};
    EXPECT_STATUS(error_set(&error, STATUS_INVALID, "batch_size is %d", 7), STATUS_INVALID);
    EXPECT_STATUS(error.status, STATUS_INVALID);
    EXPECT_EQ_U64((uint64_t)error.os_error, 0);
    EXPECT(strcmp(error.message, "batch_size is 7") == 0);
}

TEST(error_set_cuts_a_sentence_that_is_too_long)
{
    struct error error;
    EXPECT_STATUS(error_set(&error, STATUS_INVALID, "%*d", 2 * ERROR_MESSAGE_SIZE, 1), STATUS_INVALID);
    EXPECT_EQ_U64(strlen(error.message), ERROR_MESSAGE_SIZE - 1);
}

TEST(error_set_os_keeps_errno_and_its_meaning)
{
    struct error error;
    errno = ENOSPC;
    EXPECT_STATUS(error_set_os(&error, "posix_fallocate"), STATUS_OS);
    EXPECT_EQ_U64((uint64_t)error.os_error, ENOSPC);
    EXPECT(strncmp(error.message, "posix_fallocate: ", strlen("posix_fallocate: ")) == 0);
    EXPECT(strcmp(error.message + strlen("posix_fallocate: "), strerror(ENOSPC)) == 0);
}

TEST(the_sentence_is_optional)
{
    errno = EACCES;
    EXPECT_STATUS(error_set(NULL, STATUS_BUSY, "unread"), STATUS_BUSY);
    EXPECT_STATUS(error_set_os(NULL, "open"), STATUS_OS);
}

RUN_ALL()
