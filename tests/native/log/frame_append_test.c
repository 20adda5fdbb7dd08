/* SPDX-License-Identifier: Apache-2.0 */
#include "log/frame_append.h"

#include "base/bytes.h"
#include "format/crc32c.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "testing.h"

enum { BYTE = 5 };

struct files {
    char path[32];
    struct frame_append append;
};

static void files_open(struct files *files)
{
    *files = (struct files){.path = "/dev/shm/frame_test_XXXXXX"};
    int lock = mkstemp(files->path);
    files->append = (struct frame_append){.lock = lock,
                                          .byte = BYTE,
                                          .file = open(files->path, O_RDWR | O_APPEND),
                                          .body = "body",
                                          .body_size = 4};
}

static void files_close(const struct files *files)
{
    unlink(files->path);
    close(files->append.lock);
    close(files->append.file);
}

TEST(a_frame_is_appended_with_its_crc)
{
    struct files files;
    uint8_t frame[12];
    files_open(&files);
    EXPECT(frame_append(&files.append) == sizeof frame);
    EXPECT(pread(files.append.file, frame, sizeof frame, 0) == sizeof frame);
    EXPECT_EQ_U64(load_be32(frame), 4);
    EXPECT_EQ_U64(load_be32(frame + 4), crc32c_extend(0, "body", 4));
    EXPECT(memcmp(frame + 8, "body", 4) == 0);
    files.append.size = sizeof frame;
    EXPECT(frame_append(&files.append) == 2 * sizeof frame);
    files_close(&files);
}

TEST(nothing_is_written_if_the_file_changed_or_has_no_name)
{
    struct files files;
    files_open(&files);
    files.append.size = 1;
    EXPECT(frame_append(&files.append) == 0);
    files.append.size = 0;
    unlink(files.path);
    EXPECT(frame_append(&files.append) == 0);
    EXPECT(lseek(files.append.file, 0, SEEK_END) == 0);
    files_close(&files);
}

TEST(nothing_is_written_while_another_holds_the_byte)
{
    struct files files;
    files_open(&files);
    struct flock request = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = BYTE, .l_len = 1};
    EXPECT(fcntl(files.append.file, F_OFD_SETLK, &request) == 0);
    EXPECT(frame_append(&files.append) == 0);
    request.l_type = F_UNLCK;
    EXPECT(fcntl(files.append.file, F_OFD_SETLK, &request) == 0);
    EXPECT(frame_append(&files.append) > 0);
    EXPECT(frame_append(&files.append) == 0); /* the size that the caller has is out of date */
    files_close(&files);
}

RUN_ALL()
