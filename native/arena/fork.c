/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/fork.h"

#include <pthread.h>
#include <unistd.h>

static pthread_mutex_t fork_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static struct arena *fork_list;

static void fork_prepare(void)
{
    pthread_mutex_lock(&fork_mutex);
}

static void fork_parent(void)
{
    pthread_mutex_unlock(&fork_mutex);
}

/* Uses only async-signal-safe operations: close() and plain stores. Without this handler, the child would keep its
 * parent's locks alive, and write with its parent's entry. */
static void fork_child(void)
{
    for (struct arena *arena = fork_list; arena != NULL; arena = arena->next_attached) {
        if (arena->lock_descriptor >= 0) {
            close(arena->lock_descriptor);
        }
        arena->lock_descriptor = -1;
        arena->owner = 0;
        arena->me = NULL;
        arena->is_sender = false;
    }
    pthread_mutex_unlock(&fork_mutex);
}

static void fork_install(void)
{
    pthread_atfork(fork_prepare, fork_parent, fork_child);
}

void fork_list_add(struct arena *arena)
{
    CHECK(arena->next_attached == NULL);
    pthread_once(&fork_once, fork_install);
    pthread_mutex_lock(&fork_mutex);
    arena->next_attached = fork_list;
    fork_list = arena;
    pthread_mutex_unlock(&fork_mutex);
}

void fork_list_remove(struct arena *arena)
{
    pthread_mutex_lock(&fork_mutex);
    struct arena **link = &fork_list;
    while (*link != NULL && *link != arena) {
        link = &(*link)->next_attached;
    }
    if (*link == arena) {
        *link = arena->next_attached;
    }
    pthread_mutex_unlock(&fork_mutex);
}
