/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/byte_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>

#include "base/check.h"

enum { BYTE_LOCK_SLICE_NS = 2000000 };

static int ofd_lock(int descriptor, int command, short type, int64_t byte, int64_t count, struct flock *answer)
{
    CHECK(byte >= 0);
    CHECK(count >= 1);
    struct flock request = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = count};
    int result;
    do {
        *answer = request;
        result = fcntl(descriptor, command, answer);
    } while (result < 0 && errno == EINTR);
    return result;
}

enum status byte_lock_try(int descriptor, int64_t byte, enum byte_lock mode, struct error *error)
{
    CHECK(mode <= BYTE_EXCLUSIVE);
    static const short types[] = {[BYTE_UNLOCKED] = F_UNLCK, [BYTE_SHARED] = F_RDLCK, [BYTE_EXCLUSIVE] = F_WRLCK};
    struct flock answer;
    if (ofd_lock(descriptor, F_OFD_SETLK, types[mode], byte, 1, &answer) == 0) {
        return STATUS_OK;
    }
    if (errno == EAGAIN || errno == EACCES) {
        return error_set(error, STATUS_BUSY, "another process has the requested lock of the arena: try again");
    }
    return error_set_os(error, "this file system does not support open-file-description locks");
}

void byte_lock_pause(void)
{
    nanosleep(&(struct timespec){.tv_nsec = BYTE_LOCK_SLICE_NS}, NULL);
}

bool byte_is_locked(int descriptor, int64_t byte)
{
    return bytes_are_locked(descriptor, byte, 1);
}

bool bytes_are_locked(int descriptor, int64_t first, int64_t count)
{
    struct flock answer;
    if (ofd_lock(descriptor, F_OFD_GETLK, F_RDLCK, first, count, &answer) < 0) {
        return true; /* unless its death is proven, the process counts as alive */
    }
    return answer.l_type != F_UNLCK;
}
