# SPDX-License-Identifier: Apache-2.0
"""Modules that every other package uses. They import only the exceptions of shmaccum.

::

    background      the threads that shmaccum starts, and the locks that signal handlers must not wait for
    clock           a clock that the tests of a program cannot freeze
    closing         an asyncio object that starts on entry to its ``async with`` block and stops on exit
    cooperative     waits that let other greenlets run, in a process that gevent or eventlet has patched
    descriptors     the limit of open files, and the reserve that clients never get
    durability      the levels at which records outlive a process, the host and a power cut
    file_stamp      a value that changes with a file, and values that are read again when their files have changed
    former_names    the former names of modules
    homes           the module that defines each public name which is imported when it is first used
    kafka_package   the import of kafka-python without its clients
    packages        the error that names a missing package and the command that installs it
    pending_calls   calls of other threads that a loop runs
    process_handle  a handle of another process, by which it can be stopped
    secret_files    files of passwords, which no other user may read or change
    unsupported_platform   the modules of shmaccum on macOS and Windows
    units           sizes and durations as people write them
    format          Kafka's bytes in Python: batch headers, offsets of groups, topics with their partitions
"""
