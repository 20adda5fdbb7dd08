/* SPDX-License-Identifier: Apache-2.0 */
#include "base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const status_names[STATUS_COUNT] = {
#define STATUS_NAME(name, sentence) [STATUS_##name] = #name,
    STATUS_TABLE(STATUS_NAME)
#undef STATUS_NAME
};

static const char *const status_sentences[STATUS_COUNT] = {
#define STATUS_SENTENCE(name, sentence) [STATUS_##name] = sentence,
    STATUS_TABLE(STATUS_SENTENCE)
#undef STATUS_SENTENCE
};

const char *status_name(enum status status)
{
    return (unsigned)status < STATUS_COUNT ? status_names[status] : "UNKNOWN";
}

const char *status_sentence(enum status status)
{
    return (unsigned)status < STATUS_COUNT ? status_sentences[status] : "unknown status";
}

enum status error_set(struct error *error, enum status status, const char *format, ...)
{
    if (error != NULL) {
        va_list arguments;
        va_start(arguments, format);
        error->status = status;
        error->os_error = 0;
        vsnprintf(error->message, sizeof error->message, format, arguments);
        va_end(arguments);
    }
    return status;
}

enum status error_set_os(struct error *error, const char *what)
{
    int os_error = errno;
    error_set(error, STATUS_OS, "%s: %s", what, strerror(os_error));
    if (error != NULL) {
        error->os_error = os_error;
    }
    return STATUS_OS;
}
