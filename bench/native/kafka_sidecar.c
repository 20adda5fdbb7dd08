/* SPDX-License-Identifier: Apache-2.0
 *
 * A sidecar: one process with one Kafka producer (librdkafka) for all workers of a host.
 *
 *     kafka_sidecar SOCKET acks|none NAME=VALUE ...        NAME=VALUE is an option of librdkafka
 *
 * Workers connect to a stream socket in the file system and write frames. A frame has the sizes of topic, key (16
 * bits each) and value (32 bits), and then their bytes. With `acks`, the sidecar writes an ack for each frame when
 * librdkafka reports its record: the number of the frame on its connection, from 0, and librdkafka's error code,
 * 32 bits each. With `none`, it writes nothing. All numbers have the byte order of the host.
 *
 * One thread serves all connections. It sleeps in epoll, and librdkafka writes to an eventfd when it has reports. The
 * acks of one poll are written with one call per connection. On SIGTERM the sidecar reads the rest of its sockets,
 * flushes, and exits.
 *
 * The declarations of librdkafka are those of its stable interface, so that the library of confluent-kafka's wheel,
 * which has no header, can be linked.
 */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* --- librdkafka */

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_topic_conf_s rd_kafka_topic_conf_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;

typedef struct rd_kafka_message_s {
    int err;
    rd_kafka_topic_t *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *_private;
} rd_kafka_message_t;

enum { PRODUCER = 0, COPY = 2, ANY_PARTITION = -1, QUEUE_FULL = -184 };

rd_kafka_conf_t *rd_kafka_conf_new(void);
int rd_kafka_conf_set(rd_kafka_conf_t *conf, const char *name, const char *value, char *error, size_t error_size);
void rd_kafka_conf_set_dr_msg_cb(rd_kafka_conf_t *conf,
                                 void (*report)(rd_kafka_t *, const rd_kafka_message_t *, void *));
rd_kafka_t *rd_kafka_new(int type, rd_kafka_conf_t *conf, char *error, size_t error_size);
rd_kafka_topic_t *rd_kafka_topic_new(rd_kafka_t *kafka, const char *name, rd_kafka_topic_conf_t *conf);
int rd_kafka_produce(rd_kafka_topic_t *topic, int32_t partition, int flags, void *value, size_t value_size,
                     const void *key, size_t key_size, void *opaque);
int rd_kafka_poll(rd_kafka_t *kafka, int timeout_ms);
int rd_kafka_flush(rd_kafka_t *kafka, int timeout_ms);
int rd_kafka_last_error(void);
rd_kafka_queue_t *rd_kafka_queue_get_main(rd_kafka_t *kafka);
void rd_kafka_queue_io_event_enable(rd_kafka_queue_t *queue, int fd, const void *payload, size_t size);

/* --- the sidecar */

enum {
    CONNECTION_COUNT_MAX = 4096,
    TOPIC_COUNT_MAX = 64,
    NAME_SIZE_MAX = 250,
    INPUT_SIZE = 1 << 18,
    EVENT_COUNT = 64,
    FLUSH_TIMEOUT_MS = 30000,
    QUEUE_WAIT_MS = 10
};

struct frame_header {
    uint16_t topic_size, key_size;
    uint32_t value_size;
};

struct ack {
    uint32_t number;
    int32_t error;
};

/* A report of librdkafka may arrive after its connection has ended and another one uses the entry. `generation` differs
 * between these connections. */
struct connection {
    int fd;
    uint16_t generation;
    bool waits_for_space;
    uint32_t frame_count;
    size_t input_size;
    char *input;
    size_t ack_count, ack_capacity, sent_size;
    struct ack *acks;
};

struct topic {
    char name[NAME_SIZE_MAX];
    rd_kafka_topic_t *handle;
};

static struct connection connections[CONNECTION_COUNT_MAX];
static struct topic topics[TOPIC_COUNT_MAX];
static size_t connection_end, topic_count;
static bool has_acks;
static rd_kafka_t *kafka;
static int poller, listener, reports, signals;

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "kafka_sidecar: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void watch(int operation, int fd, uint32_t events, size_t index)
{
    struct epoll_event event = {.events = events, .data.u64 = index};
    if (epoll_ctl(poller, operation, fd, &event) != 0) {
        fail("epoll_ctl");
    }
}

static void *needed(void *memory)
{
    if (memory == NULL) {
        fail("memory");
    }
    return memory;
}

/* --- connections. The indexes after those of connections are those of the other descriptors. */

enum { LISTENER = CONNECTION_COUNT_MAX, REPORTS, SIGNALS };

static void disconnect(struct connection *connection)
{
    close(connection->fd);
    connection->fd = 0;
    connection->generation++;
    connection->ack_count = connection->sent_size = connection->input_size = 0;
}

/* Return false if no connection waits. */
static bool accept_connection(void)
{
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    size_t index = 0;
    while (index < CONNECTION_COUNT_MAX && connections[index].fd != 0) {
        index++;
    }
    if (index == CONNECTION_COUNT_MAX) {
        close(fd);
        return true;
    }
    struct connection *connection = &connections[index];
    if (connection->input == NULL) {
        connection->input = needed(malloc(INPUT_SIZE));
    }
    connection->fd = fd;
    connection->frame_count = 0;
    connection->waits_for_space = false;
    connection_end = index + 1 > connection_end ? index + 1 : connection_end;
    watch(EPOLL_CTL_ADD, fd, EPOLLIN, index);
    return true;
}

static void write_acks(struct connection *connection)
{
    size_t size = connection->ack_count * sizeof(struct ack);
    while (connection->sent_size < size) {
        const char *from = (const char *)connection->acks + connection->sent_size;
        ssize_t sent = send(connection->fd, from, size - connection->sent_size, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) {
            disconnect(connection);
            return;
        }
        if (sent < 0) {
            break;
        }
        connection->sent_size += (size_t)sent;
    }
    bool waits_for_space = connection->sent_size < size;
    if (!waits_for_space) {
        connection->ack_count = connection->sent_size = 0;
    }
    if (waits_for_space != connection->waits_for_space) {
        connection->waits_for_space = waits_for_space;
        uint32_t events = EPOLLIN | (waits_for_space ? (uint32_t)EPOLLOUT : 0);
        watch(EPOLL_CTL_MOD, connection->fd, events, (size_t)(connection - connections));
    }
}

/* --- records */

static void note_report(rd_kafka_t *producer, const rd_kafka_message_t *message, void *unused)
{
    (void)producer;
    (void)unused;
    if (!has_acks) {
        return;
    }
    uintptr_t opaque = (uintptr_t)message->_private;
    struct connection *connection = &connections[opaque >> 48];
    if (connection->fd == 0 || connection->generation != (uint16_t)(opaque >> 32)) {
        return;
    }
    if (connection->ack_count == connection->ack_capacity) {
        connection->ack_capacity = 2 * connection->ack_capacity + 64;
        connection->acks = needed(realloc(connection->acks, connection->ack_capacity * sizeof(struct ack)));
    }
    connection->acks[connection->ack_count++] = (struct ack){(uint32_t)opaque, message->err};
}

static void take_reports(int timeout_ms)
{
    rd_kafka_poll(kafka, timeout_ms);
    for (size_t index = 0; index < connection_end; index++) {
        if (connections[index].fd != 0 && connections[index].ack_count > 0) {
            write_acks(&connections[index]);
        }
    }
}

static rd_kafka_topic_t *find_topic(const char *name, size_t size)
{
    for (size_t index = 0; index < topic_count; index++) {
        if (strlen(topics[index].name) == size && memcmp(topics[index].name, name, size) == 0) {
            return topics[index].handle;
        }
    }
    if (topic_count == TOPIC_COUNT_MAX || size >= NAME_SIZE_MAX) {
        fprintf(stderr, "kafka_sidecar: at most %d topics, names below %d bytes\n", TOPIC_COUNT_MAX, NAME_SIZE_MAX);
        exit(1);
    }
    struct topic *topic = &topics[topic_count++];
    memcpy(topic->name, name, size);
    topic->handle = needed(rd_kafka_topic_new(kafka, topic->name, NULL));
    return topic->handle;
}

/* Wait while librdkafka's queue is full. Meanwhile, no socket is read, so the workers wait, too. */
static void produce(struct connection *connection, const struct frame_header *header, char *body)
{
    uintptr_t index = (uintptr_t)(connection - connections), generation = connection->generation;
    void *opaque = (void *)(index << 48 | generation << 32 | connection->frame_count++);
    rd_kafka_topic_t *topic = find_topic(body, header->topic_size);
    const char *key = body + header->topic_size;
    char *value = body + header->topic_size + header->key_size;
    while (rd_kafka_produce(topic, ANY_PARTITION, COPY, value, header->value_size, header->key_size ? key : NULL,
                            header->key_size, opaque) != 0) {
        if (rd_kafka_last_error() != QUEUE_FULL) {
            rd_kafka_message_t refused = {.err = rd_kafka_last_error(), ._private = opaque};
            note_report(kafka, &refused, NULL);
            return;
        }
        rd_kafka_poll(kafka, QUEUE_WAIT_MS);
    }
}

/* Produce the records of all complete frames in the input. Return the number of bytes of these frames. */
static size_t produce_frames(struct connection *connection)
{
    size_t position = 0;
    while (connection->input_size - position >= sizeof(struct frame_header)) {
        struct frame_header header;
        memcpy(&header, connection->input + position, sizeof(header));
        size_t body_size = (size_t)header.topic_size + header.key_size + header.value_size;
        if (body_size > INPUT_SIZE - sizeof(header)) {
            disconnect(connection);
            return 0;
        }
        if (connection->input_size - position - sizeof(header) < body_size) {
            break;
        }
        produce(connection, &header, connection->input + position + sizeof(header));
        position += sizeof(header) + body_size;
    }
    return position;
}

/* Read once. Return false if nothing is left to read. */
static bool read_frames(struct connection *connection)
{
    char *to = connection->input + connection->input_size;
    ssize_t received = recv(connection->fd, to, INPUT_SIZE - connection->input_size, 0);
    if (received < 0 && errno == EAGAIN) {
        return false;
    }
    if (received <= 0) {
        disconnect(connection);
        return false;
    }
    connection->input_size += (size_t)received;
    size_t position = produce_frames(connection);
    if (position > 0) {
        connection->input_size -= position;
        memmove(connection->input, connection->input + position, connection->input_size);
    }
    return connection->fd != 0;
}

/* --- the process */

static void read_the_rest(void)
{
    while (accept_connection()) {
    }
    for (size_t index = 0; index < connection_end; index++) {
        while (connections[index].fd != 0 && read_frames(&connections[index])) {
        }
    }
    rd_kafka_flush(kafka, FLUSH_TIMEOUT_MS);
    take_reports(0);
}

static void serve_connection(struct connection *connection, uint32_t events)
{
    if ((events & EPOLLOUT) && connection->fd != 0) {
        write_acks(connection);
    }
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) && connection->fd != 0) {
        read_frames(connection);
    }
}

/* Serve until SIGTERM. The descriptor of a connection that ended is 0, and later events of the same round ignore it. */
static void serve(void)
{
    struct epoll_event events[EVENT_COUNT];
    for (;;) {
        int count = epoll_wait(poller, events, EVENT_COUNT, -1);
        for (int number = 0; number < count; number++) {
            size_t index = events[number].data.u64;
            uint64_t times;
            if (index == SIGNALS) {
                read_the_rest();
                return;
            } else if (index == LISTENER) {
                accept_connection();
            } else if (index == REPORTS) {
                if (read(reports, &times, sizeof(times)) > 0) {
                    take_reports(0);
                }
            } else {
                serve_connection(&connections[index], events[number].events);
            }
        }
    }
}

static void open_producer(int option_count, char **options)
{
    char error[512];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    for (int number = 0; number < option_count; number++) {
        char *value = strchr(options[number], '=');
        if (value == NULL) {
            fprintf(stderr, "kafka_sidecar: %s is not NAME=VALUE\n", options[number]);
            exit(1);
        }
        *value = '\0';
        if (rd_kafka_conf_set(conf, options[number], value + 1, error, sizeof(error)) != 0) {
            fprintf(stderr, "kafka_sidecar: %s\n", error);
            exit(1);
        }
    }
    rd_kafka_conf_set_dr_msg_cb(conf, note_report);
    kafka = rd_kafka_new(PRODUCER, conf, error, sizeof(error));
    if (kafka == NULL) {
        fprintf(stderr, "kafka_sidecar: %s\n", error);
        exit(1);
    }
    uint64_t once = 1;
    reports = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    rd_kafka_queue_io_event_enable(rd_kafka_queue_get_main(kafka), reports, &once, sizeof(once));
}

static void open_listener(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address.sun_path)) {
        errno = ENAMETOOLONG;
        fail(path);
    }
    memcpy(address.sun_path, path, strlen(path));
    unlink(path);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0 || listen(listener, SOMAXCONN) != 0) {
        fail(path);
    }
}

int main(int argument_count, char **arguments)
{
    if (argument_count < 3) {
        fprintf(stderr, "usage: kafka_sidecar SOCKET acks|none NAME=VALUE ...\n");
        return 2;
    }
    has_acks = strcmp(arguments[2], "acks") == 0;
    sigset_t ending;
    sigemptyset(&ending);
    sigaddset(&ending, SIGTERM);
    sigprocmask(SIG_BLOCK, &ending, NULL);
    signals = signalfd(-1, &ending, SFD_CLOEXEC);
    open_producer(argument_count - 3, arguments + 3);
    open_listener(arguments[1]);
    poller = epoll_create1(EPOLL_CLOEXEC);
    watch(EPOLL_CTL_ADD, listener, EPOLLIN, LISTENER);
    watch(EPOLL_CTL_ADD, reports, EPOLLIN, REPORTS);
    watch(EPOLL_CTL_ADD, signals, EPOLLIN, SIGNALS);
    serve();
    return 0;
}
