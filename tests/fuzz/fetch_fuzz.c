/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile fetches of hostile segments: a request of the right structure, with faults, passes through all code of an
 * ordinary fetch in native/python/log. Python is embedded, and each of its objects has memory of its exact size.
 * Besides the code's own bounds, these rules are checked:
 *
 *   a request is read, or rejected with ValueError · if the bytes are left to Python, they are complete, and nothing
 *   was sent · a response has the size that its header states, and contains the bytes of the file, in however many
 *   portions the socket accepts it · no call leaks an object
 *
 *   input   choices of a byte each: the version, batches of the segment, the window on it, fields of the request,
 *           then faults in the bytes of both
 *
 * An input is a script, so a fuzzer that changes its bytes keeps the structure of the request.
 */
#include "fuzzing.h"

#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "format/record_batch.h"
#include "python/log/fetch.h"
#include "python/common/module_methods.h"

enum {
    BYTES_MAX = 8 << 10,
    ANSWER_MAX = 1 << 20,
    DESCRIPTOR_MIN = 300, /* Python shares the objects of small numbers */
    SIZE_MAX_OF_FRAME = 4 << 10,
    TOPIC_ID_SIZE = 16,
    CORRELATION_ID = 77,
    CORRELATION_IN_REQUEST = 8,
    CORRELATION_IN_ANSWER = 4,
    FAULTS_MAX = 4,
};

static const uint8_t topic_id[TOPIC_ID_SIZE] = "an id of a topic";

/* ---- the script ---- */

struct script {
    const uint8_t *cursor;
    const uint8_t *end;
};

static uint8_t draw(struct script *script)
{
    return script->cursor < script->end ? *script->cursor++ : 0;
}

static size_t draw_below(struct script *script, size_t limit)
{
    size_t high = limit > UINT8_MAX ? draw(script) : 0;
    return (high << 8 | draw(script)) % limit;
}

static int64_t draw_number(struct script *script)
{
    static const int64_t edges[] = {0,    1,       2,         3,         7,         64,        300,      5000,
                                    -1,   -2,      1 << 20,   INT8_MAX,  INT16_MAX, INT32_MAX, INT32_MIN, UINT32_MAX,
                                    4096, 1 << 16, INT64_MAX, INT64_MIN};
    return edges[draw_below(script, sizeof edges / sizeof edges[0])];
}

/* Draws a number for a field, mostly the one that it has in practice. */
static int64_t draw_near(struct script *script, int64_t usual)
{
    uint8_t choice = draw(script);
    return choice < 160 ? usual : choice < 224 ? choice - 190 : draw_number(script);
}

/* Draws a position in a file. It is not negative, because an index with a negative one is not used. */
static int64_t draw_place(struct script *script, int64_t usual)
{
    int64_t place = draw_near(script, usual);
    return place < 0 ? usual : place;
}

/* ---- bytes ---- */

struct bytes {
    uint8_t content[BYTES_MAX];
    size_t size;
};

static void put(struct bytes *bytes, const void *content, size_t size)
{
    if (size <= sizeof bytes->content - bytes->size) {
        memcpy(bytes->content + bytes->size, content, size);
        bytes->size += size;
    }
}

static void put_number(struct bytes *bytes, int64_t value, size_t size)
{
    uint8_t all[sizeof(uint64_t)];
    store_be64(all, (uint64_t)value);
    put(bytes, all + sizeof all - size, size);
}

static void number_damage(struct script *script, struct bytes *bytes, size_t at)
{
    uint8_t number[sizeof(uint64_t)];
    size_t width = (size_t)1 << draw_below(script, 4);
    store_be64(number, (uint64_t)draw_number(script));
    size_t room = bytes->size - at;
    memcpy(bytes->content + at, number + sizeof number - width, width < room ? width : room);
}

static void piece_move(struct script *script, struct bytes *bytes, size_t at)
{
    size_t count = 1 + draw_below(script, 16);
    size_t room = sizeof bytes->content - bytes->size;
    count = count < room ? count : room;
    memmove(bytes->content + at + count, bytes->content + at, bytes->size - at);
    bytes->size += count;
}

/* Add some faults after the first bytes. Most inputs get none. */
static void damage(struct script *script, struct bytes *bytes, size_t first)
{
    size_t count = draw_below(script, 2 * FAULTS_MAX);
    for (size_t i = 0; i < count && count <= FAULTS_MAX && bytes->size > first; i++) {
        size_t at = first + draw_below(script, bytes->size - first);
        switch (draw(script) % 4) {
        case 0:
            bytes->content[at] = draw(script);
            break;
        case 1:
            number_damage(script, bytes, at);
            break;
        case 2:
            piece_move(script, bytes, at);
            break;
        default:
            bytes->size = at;
        }
    }
}

/* ---- the segment ---- */

struct segment {
    struct bytes bytes;
    int64_t end_offset;
    int64_t positions[8];
    int64_t offsets[8];
    size_t batch_count;
};

static void batch_put(struct script *script, struct segment *segment)
{
    static const uint8_t records[256];
    uint8_t header[RECORD_BATCH_HEADER_SIZE];
    size_t size = draw(script);
    int32_t count = 1 + draw(script) % 5;
    struct record_batch_header fields = {.base_offset = segment->end_offset,
                                         .batch_length = (int32_t)(sizeof header - RECORD_BATCH_UNCOUNTED_SIZE + size),
                                         .magic = RECORD_BATCH_MAGIC_VALUE,
                                         .last_offset_delta = count - 1,
                                         .record_count = count};
    record_batch_header_write(header, &fields);
    segment->positions[segment->batch_count] = (int64_t)segment->bytes.size;
    segment->offsets[segment->batch_count++] = segment->end_offset;
    segment->end_offset += count;
    put(&segment->bytes, header, sizeof header);
    put(&segment->bytes, records, size);
}

static void segment_make(struct script *script, struct segment *segment)
{
    size_t count = 1 + draw_below(script, sizeof segment->positions / sizeof segment->positions[0]);
    *segment = (struct segment){.end_offset = draw(script) % 4};
    for (size_t i = 0; i < count; i++) {
        batch_put(script, segment);
    }
    damage(script, &segment->bytes, 0);
}

/* ---- the request ---- */

struct request {
    struct bytes bytes;
    int64_t version;
    size_t body; /* where it begins */
};

static bool is_flexible(const struct request *request)
{
    return request->version >= FETCH_FLEXIBLE;
}

static void length_put(struct request *request, size_t fixed_size, size_t length)
{
    bool is_short = is_flexible(request);
    put_number(&request->bytes, (int64_t)length + is_short, is_short ? 1 : fixed_size);
}

static void tags_put(struct script *script, struct request *request)
{
    if (is_flexible(request)) {
        bool has_tag = draw(script) > 250;
        put(&request->bytes, has_tag ? "\1\3\2xy" : "\0", has_tag ? 5 : 1);
    }
}

static void topic_put(struct script *script, struct request *request)
{
    static const char *const names[] = {"t", "t", "t", "", "unknown", "t\xff"};
    uint8_t choice = draw(script);
    if (request->version >= 13) {
        put(&request->bytes, topic_id, sizeof topic_id - 1);
        put_number(&request->bytes, topic_id[TOPIC_ID_SIZE - 1] + (choice > 250), 1);
        return;
    }
    const char *name = names[choice % (sizeof names / sizeof names[0])];
    length_put(request, sizeof(int16_t), strlen(name));
    put(&request->bytes, name, strlen(name));
}

static void partition_put(struct script *script, struct request *request)
{
    struct bytes *bytes = &request->bytes;
    put_number(bytes, draw_near(script, draw(script) % 2), sizeof(int32_t));
    if (request->version >= 9) {
        put_number(bytes, draw_near(script, -1), sizeof(int32_t));
    }
    put_number(bytes, draw_near(script, draw(script) % 16), sizeof(int64_t));
    if (request->version >= 12) {
        put_number(bytes, -1, sizeof(int32_t));
    }
    if (request->version >= 5) {
        put_number(bytes, -1, sizeof(int64_t));
    }
    put_number(bytes, draw_near(script, 1 << 20), sizeof(int32_t));
    tags_put(script, request);
}

typedef void partition_writer(struct script *script, struct request *request);

static void number_put(struct script *script, struct request *request)
{
    put_number(&request->bytes, draw_near(script, 0), sizeof(int32_t));
}

static void topics_put(struct script *script, struct request *request, partition_writer *write, size_t count)
{
    length_put(request, sizeof(int32_t), count);
    for (size_t i = 0; i < count; i++) {
        size_t partition_count = 1 + draw(script) % 3;
        topic_put(script, request);
        length_put(request, sizeof(int32_t), partition_count);
        for (size_t j = 0; j < partition_count; j++) {
            write(script, request);
        }
        tags_put(script, request);
    }
}

static void limits_put(struct script *script, struct request *request)
{
    struct bytes *bytes = &request->bytes;
    if (request->version < 15) {
        put_number(bytes, -1, sizeof(int32_t));
    }
    put_number(bytes, draw_near(script, 0), sizeof(int32_t));
    put_number(bytes, draw_near(script, 1), sizeof(int32_t));
    put_number(bytes, draw_near(script, 1 << 20), sizeof(int32_t));
    put_number(bytes, draw(script) % 3, sizeof(int8_t));
    if (request->version >= 7) {
        bool is_in_session = draw(script) % 4 == 0;
        put_number(bytes, is_in_session ? 5 : 0, sizeof(int32_t));
        put_number(bytes, is_in_session ? 1 : draw_near(script, -1), sizeof(int32_t));
    }
}

static void request_make(struct script *script, struct request *request)
{
    struct bytes *bytes = &request->bytes;
    request->version = FETCH_VERSION_MIN + draw(script) % (FETCH_VERSION_MAX - FETCH_VERSION_MIN + 1);
    bytes->size = 0;
    put_number(bytes, 0, sizeof(int32_t));
    put_number(bytes, FETCH_KEY, sizeof(int16_t));
    put_number(bytes, request->version, sizeof(int16_t));
    put_number(bytes, CORRELATION_ID, sizeof(int32_t));
    put_number(bytes, draw(script) > 128 ? -1 : 0, sizeof(int16_t));
    put(bytes, "", is_flexible(request));
    request->body = bytes->size;
    limits_put(script, request);
    topics_put(script, request, partition_put, 1 + draw(script) % 3);
    if (request->version >= 7) {
        topics_put(script, request, number_put, draw(script) > 240);
    }
    if (request->version >= 11) {
        length_put(request, sizeof(int16_t), 4);
        put(bytes, "rack", 4);
    }
    tags_put(script, request);
    damage(script, bytes, draw(script) > 240 ? sizeof(int32_t) : request->body);
    if (draw(script) < 250) {
        store_be32(bytes->content, (uint32_t)(bytes->size - sizeof(int32_t)));
    }
}

/* ---- Python ---- */

/* Objects that live as long as the process. */
static struct {
    PyObject *types; /* FetchRequest, Wanted, Found, FileRange, Served */
    PyObject *head_type;
    PyObject *goes_on;
    PyObject *in_session; /* the result of goes_on: a list, or None */
    int file;             /* the segment */
    int sockets[2];       /* ours, theirs */
    uint8_t *answer;
} world;

static PyObject *needed(PyObject *object)
{
    if (object == NULL) {
        PyErr_Print();
        fuzz_fail("Python gave no object");
    }
    return object;
}

static PyObject *goes_on_answer(PyObject *self, PyObject *request)
{
    (void)self;
    if (!PyTuple_Check(request) || PyTuple_GET_SIZE(request) != REQUEST_FIELD_COUNT) {
        fuzz_fail("goes_on was asked about an object that is no request");
    }
    if (world.in_session == NULL) {
        return PyErr_Format(PyExc_RuntimeError, "goes_on fails");
    }
    return Py_NewRef(world.in_session);
}

static PyObject *python_value(const char *expression)
{
    PyObject *names = needed(PyDict_New());
    PyObject *value = needed(PyRun_String(expression, Py_eval_input, names, names));
    Py_DECREF(names);
    return value;
}

static void python_begin(void)
{
    PyPreConfig before;
    PyConfig config;
    PyPreConfig_InitIsolatedConfig(&before);
    before.allocator = PYMEM_ALLOCATOR_MALLOC; /* a sanitizer knows the bounds of each object then */
    PyStatus status = Py_PreInitialize(&before);
    PyConfig_InitIsolatedConfig(&config);
    config.site_import = 0;
    if (PyStatus_Exception(status) || PyStatus_Exception(Py_InitializeFromConfig(&config))) {
        fuzz_fail("Python does not begin");
    }
    PyConfig_Clear(&config);
}

static void world_begin(void)
{
    static PyMethodDef goes_on = {"goes_on", goes_on_answer, METH_O, NULL};
    python_begin();
    world.types = python_value("tuple(type(name, (tuple,), {'__slots__': ()}) for name in 'rwfgs')");
    world.head_type = python_value("type('Head', (), {})");
    world.goes_on = needed(PyCFunction_New(&goes_on, NULL));
    int file = memfd_create("segment", 0);
    int least = 1; /* the kernel replaces it by its minimum size */
    world.file = fcntl(file, F_DUPFD, DESCRIPTOR_MIN);
    world.answer = malloc(ANSWER_MAX);
    if (world.file < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, world.sockets) != 0 ||
        setsockopt(world.sockets[0], SOL_SOCKET, SO_SNDBUF, &least, sizeof least) != 0) {
        fuzz_fail("there are no files or sockets");
    }
    close(file);
}

/* ---- windows ---- */

/* Objects of one input. */
struct scene {
    PyObject *heads;
    PyObject *windows;
    PyObject *file;
};

static PyObject *numbers_list(struct script *script, const int64_t *values, size_t count)
{
    PyObject *list = needed(PyList_New(0));
    for (size_t i = 0; i < count; i++) {
        PyObject *number = needed(PyLong_FromLongLong(draw_place(script, values[i])));
        (void)PyList_Append(list, number);
        Py_DECREF(number);
    }
    return list;
}

static PyObject *window_make(struct script *script, const struct segment *segment, PyObject *file)
{
    size_t noted = draw_below(script, segment->batch_count + 1);
    PyObject *offsets = numbers_list(script, segment->offsets, noted);
    PyObject *positions = numbers_list(script, segment->positions, noted);
    return needed(Py_BuildValue("(OLLLNNLLL)", file, (long long)segment->offsets[0],
                                (long long)draw_near(script, segment->end_offset),
                                (long long)draw_place(script, (int64_t)segment->bytes.size), offsets, positions,
                                (long long)draw_near(script, 0), (long long)segment->end_offset, 0LL));
}

static void head_put(const struct scene *scene, PyObject *topic, long partition)
{
    PyObject *head = needed(PyObject_CallNoArgs(world.head_type));
    PyObject *key = needed(Py_BuildValue("(Ol)", topic, partition));
    (void)PyObject_SetAttrString(head, "windows", scene->windows);
    (void)PyDict_SetItem(scene->heads, key, head);
    Py_DECREF(head);
    Py_DECREF(key);
}

static void scene_make(struct script *script, const struct segment *segment, struct scene *scene)
{
    PyObject *name = needed(PyUnicode_FromString("t"));
    PyObject *id = needed(PyBytes_FromStringAndSize((const char *)topic_id, TOPIC_ID_SIZE));
    scene->file = needed(PyLong_FromLong(world.file));
    scene->heads = needed(PyDict_New());
    scene->windows = needed(PyTuple_New(1));
    PyTuple_SET_ITEM(scene->windows, 0, window_make(script, segment, scene->file));
    for (long partition = 0; partition < 2; partition++) {
        head_put(scene, name, partition);
        head_put(scene, id, partition);
    }
    uint8_t choice = draw(script);
    world.in_session = choice > 250 ? NULL : choice > 200 ? Py_NewRef(Py_None) : needed(PyList_New(0));
    for (int64_t i = 0; choice <= 200 && i < choice % 3; i++) {
        long long offset = draw_near(script, 1);
        long long size_max = draw_near(script, 500);
        PyObject *fields = needed(Py_BuildValue("((OLLLi))", i ? id : name, (long long)i, offset, size_max, -1));
        PyObject *wanted = needed(PyObject_Call(PyTuple_GET_ITEM(world.types, 1), fields, NULL));
        (void)PyList_Append(world.in_session, wanted);
        Py_DECREF(wanted);
        Py_DECREF(fields);
    }
    Py_DECREF(name);
    Py_DECREF(id);
}

static void scene_end(struct scene *scene)
{
    Py_CLEAR(scene->heads);
    Py_CLEAR(scene->windows);
    Py_CLEAR(scene->file);
    Py_CLEAR(world.in_session);
}

/* ---- rules ---- */

static void error_expect(PyObject *type, const char *otherwise)
{
    if (!PyErr_ExceptionMatches(type)) {
        PyErr_Print();
        fuzz_fail(otherwise);
    }
    PyErr_Clear();
}

/* Check the reader of requests alone. */
static void read_check(const struct request *request)
{
    if (request->bytes.size < request->body) {
        return;
    }
    size_t size = request->bytes.size - request->body;
    uint8_t *copy = malloc(size);
    memcpy(copy, request->bytes.content + request->body, size);
    PyObject *read = fetch_request_read(copy, (Py_ssize_t)size, request->version, PyTuple_GET_ITEM(world.types, 0),
                                        PyTuple_GET_ITEM(world.types, 1));
    if (read == NULL) {
        error_expect(PyExc_ValueError, "a request was refused by another error");
    }
    Py_XDECREF(read);
    free(copy);
}

/* Receive a part of a response, and return the size received so far. */
static size_t answer_receive(size_t size)
{
    ssize_t more;
    while ((more = recv(world.sockets[1], world.answer + size, ANSWER_MAX - size, 0)) > 0) {
        size += (size_t)more;
    }
    return size;
}

/* Receive a response until it is complete, or until it fails. */
static PyObject *answer_end(PyObject *outcome, size_t *received)
{
    *received = answer_receive(0);
    while (is_under_way(outcome)) {
        PyObject *next = served_send_more(world.sockets[0], outcome);
        size_t size = answer_receive(*received);
        if (is_under_way(next) && size == *received) {
            fuzz_fail("an answer is under way, and nothing comes of it");
        }
        *received = size;
        Py_SETREF(outcome, next);
    }
    return outcome;
}

/* Check the records of a partition, which begin after `position`, and return the position past them. */
static size_t records_check(PyObject *records, size_t position, size_t size, const struct segment *segment)
{
    size_t start = PyLong_AsSize_t(PyTuple_GET_ITEM(records, RANGE_POSITION));
    size_t count = PyLong_AsSize_t(PyTuple_GET_ITEM(records, RANGE_SIZE));
    if (start + count > segment->bytes.size) {
        fuzz_fail("an answer is whole, and the file ends within its records");
    }
    const uint8_t *found = memmem(world.answer + position, size - position, segment->bytes.content + start, count);
    if (found == NULL) {
        fuzz_fail("records are not the bytes of the file");
    }
    return (size_t)(found - world.answer) + count;
}

/* Check a response that the socket accepted in one call. */
static void answer_check(PyObject *found, const struct bytes *frame, size_t sent, const struct segment *segment)
{
    size_t position = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(found); i++) {
        PyObject *records = PyTuple_GET_ITEM(PyList_GET_ITEM(found, i), FOUND_RECORDS);
        position = records == Py_None ? position : records_check(records, position, sent, segment);
    }
    if (load_be32(world.answer) != sent - sizeof(uint32_t)) {
        fuzz_fail("an answer has another size than it tells");
    }
    if (load_be32(world.answer + CORRELATION_IN_ANSWER) != load_be32(frame->content + CORRELATION_IN_REQUEST)) {
        fuzz_fail("an answer belongs to another request");
    }
}

static void outcome_check(PyObject *outcome, size_t received, const struct bytes *frame,
                          const struct segment *segment)
{
    if (outcome == NULL) {
        error_expect(PyExc_ConnectionError, "a fetch failed in our code");
        return;
    }
    if (PyBytes_Check(outcome)) {
        bool is_same = (size_t)PyBytes_GET_SIZE(outcome) == frame->size &&
                       memcmp(PyBytes_AS_STRING(outcome), frame->content, frame->size) == 0;
        if (!is_same || received != 0) {
            fuzz_fail("a request was left to Python, and not all of it, or something was sent");
        }
        return;
    }
    size_t sent = PyTuple_Check(outcome) ? PyLong_AsSize_t(PyTuple_GET_ITEM(outcome, SERVED_SENT)) : received + 1;
    if (sent != received) {
        fuzz_fail("the bytes that were sent differ from the reported ones");
    }
    answer_check(PyTuple_GET_ITEM(outcome, SERVED_FOUND), frame, sent, segment);
}

/* Check the whole path from the request to the response. */
static void serve_check(const struct scene *scene, const struct request *request, const struct segment *segment)
{
    const struct bytes *frame = &request->bytes;
    if (frame->size == 0 || send(world.sockets[1], frame->content, frame->size, 0) != (ssize_t)frame->size) {
        return;
    }
    const struct serving tables = {scene->heads, world.goes_on, SIZE_MAX_OF_FRAME, world.types};
    size_t received;
    PyObject *outcome = answer_end(fetch_serve(world.sockets[0], &tables), &received);
    outcome_check(outcome, received, frame, segment);
    Py_XDECREF(outcome);
}

static Py_ssize_t references(const struct scene *scene)
{
    Py_ssize_t count = Py_REFCNT(scene->file) + Py_REFCNT(scene->heads) + Py_REFCNT(scene->windows) +
                       Py_REFCNT(PyTuple_GET_ITEM(scene->windows, 0)) + Py_REFCNT(world.goes_on);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(world.types); i++) {
        count += Py_REFCNT(PyTuple_GET_ITEM(world.types, i));
    }
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct segment segment;
    static struct request request;
    struct script script = {data, data + size};
    struct scene scene;
    if (world.types == NULL) {
        world_begin();
    }
    segment_make(&script, &segment);
    request_make(&script, &request);
    scene_make(&script, &segment, &scene);
    if (ftruncate(world.file, 0) != 0 ||
        pwrite(world.file, segment.bytes.content, segment.bytes.size, 0) != (ssize_t)segment.bytes.size) {
        fuzz_fail("the segment was not written");
    }
    Py_ssize_t before = references(&scene);
    read_check(&request);
    serve_check(&scene, &request, &segment);
    if (references(&scene) != before) {
        fuzz_fail("a call leaked an object");
    }
    scene_end(&scene);
    return 0;
}
