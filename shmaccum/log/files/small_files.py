# SPDX-License-Identifier: Apache-2.0
"""The small files of a log directory: text in Kafka's formats, replaced as a whole.

Procedure: write the new content beside the file, (sync it,) rename it over the old one, (sync the folder.) A death
at any point leaves the old content or the new one, and perhaps a ``.tmp`` file that the next writer removes. With the
two syncs, this also applies to a crash of the host.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Iterator, Mapping

from shmaccum.common.durability import sync_folder
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import NotALogError
from shmaccum.log.files.file_names import LEADER_EPOCHS_FILE, META_UUID_KEY, PARTITION_METADATA_FILE, TEMPORARY
from shmaccum.log.files.regular_files import open_regular

UUID_SIZE = 16
CHECKPOINT_VERSION = "0"


def replace_file(path: str, content: bytes) -> None:
    """Replace the content of a file atomically for other processes. For files that are checked when they are read.

    Raises:
        OSError: the write failed; the old content is still there.
    """
    with _replacing(path) as descriptor:
        write_all(descriptor, content)


def replace_file_synced(path: str, content: bytes) -> None:
    """Replace the content of a file atomically, also in a crash of the host.

    Raises:
        OSError: the old content is still there, or only the sync of the folder failed.
    """
    with _replacing(path) as descriptor:
        write_all(descriptor, content)
        os.fsync(descriptor)
    sync_folder(os.path.dirname(path))


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[int]:
    temporary = path + TEMPORARY
    descriptor = open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW)
    try:
        yield descriptor
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of the content to a file, with several system calls if necessary."""
    written = os.write(descriptor, content)
    rest = memoryview(content)[written:] if written < len(content) else b""
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def read_properties(path: str) -> dict[str, str]:
    """Read a Java properties file as Kafka writes it: comments, and one ``key=value`` per line."""
    with open(path, encoding="utf-8", errors="replace", opener=open_regular) as file:
        pairs = [line.strip().partition("=") for line in file if "=" in line and not line.startswith("#")]
    return {key.strip(): value.strip() for key, _, value in pairs}


def properties(values: Mapping[str, str]) -> bytes:
    """The content of a properties file."""
    return "".join(f"{key}={value}\n" for key, value in values.items()).encode()


def uuid_text(value: bytes) -> str:
    """The text of a 16-byte uuid in Kafka's form: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def parse_uuid(text: str) -> bytes:
    """The 16 bytes of a uuid in Kafka's form.

    Raises:
        NotALogError: if the text is not a uuid.
    """
    try:
        value = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        value = b""
    if len(value) != UUID_SIZE:
        raise NotALogError(f"{text!r} is not a uuid in Kafka's form")
    return value


def read_directory_id(path: str) -> bytes:
    """The 16-byte id of a log directory, from its ``meta.properties``.

    Raises:
        NotALogError: if the file has no id.
        OSError: if the file cannot be read.
    """
    try:
        return parse_uuid(read_properties(path).get(META_UUID_KEY, ""))
    except NotALogError as error:
        raise NotALogError(
            f"{path} has no {META_UUID_KEY} ({error}): restore the file from a backup, or write "
            f"{META_UUID_KEY}={uuid_text(os.urandom(UUID_SIZE))} into it, which makes the log a new one for its clients"
        ) from None


def offsets_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The content of Kafka's OffsetCheckpointFile: version, count, then one ``topic partition offset`` per line."""
    lines = [CHECKPOINT_VERSION, str(len(offsets))]
    lines += [f"{place.topic} {place.partition} {offset}" for place, offset in sorted(offsets.items())]
    return "".join(line + "\n" for line in lines).encode()


def read_offsets_checkpoint(path: str) -> dict[TopicPartition, int]:
    """The offsets in such a file. A missing or damaged file has none, which costs time but no data."""
    try:
        with open(path, encoding="utf-8", opener=open_regular) as file:
            version, count, *lines = file.read().splitlines()
        rows = [line.split() for line in lines]
        offsets = {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in rows}
        is_whole = version == CHECKPOINT_VERSION and int(count) == len(offsets)
    except (FileNotFoundError, ValueError):
        return {}
    return offsets if is_whole else {}


def make_partition_files(folder: str, topic_id: bytes, *, is_synced: bool) -> None:
    """Create the two small files that Kafka has in each partition's folder, unless they exist. The id is written last.

    Args:
        folder: the folder of the partition.
        topic_id: the id of its topic. If it were lost, the topic would count as another one.
        is_synced: If True, force content and names to disk, also those of files that a dead writer left.
    """
    epochs, metadata = os.path.join(folder, LEADER_EPOCHS_FILE), os.path.join(folder, PARTITION_METADATA_FILE)
    if not os.path.exists(epochs):
        replace_file(epochs, f"{CHECKPOINT_VERSION}\n1\n0 0\n".encode())
    if read_topic_id(folder) is None:
        replace_file(metadata, f"version: 0\ntopic_id: {uuid_text(topic_id)}\n".encode())
    if is_synced:
        sync_file(epochs)
        sync_file(metadata)
        sync_folder(folder)


def sync_file(path: str) -> None:
    """Force a file that is not open to disk."""
    descriptor = open_regular(path, os.O_RDONLY)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def read_topic_id(folder: str) -> bytes | None:
    """The topic id in the folder of a partition, or None if it has none yet.

    Raises:
        OSError: if the file cannot be read.
    """
    try:
        with open(
            os.path.join(folder, PARTITION_METADATA_FILE), encoding="utf-8", errors="replace", opener=open_regular
        ) as file:
            pairs = [line.partition(":") for line in file]
        return next((parse_uuid(value.strip()) for key, _, value in pairs if key.strip() == "topic_id"), None)
    except (FileNotFoundError, NotALogError):
        return None


def append_or_cut(descriptor: int, content: bytes, size: int, *, is_synced: bool) -> None:
    """Append all of the content, or nothing, to a file that is open for appending.

    Args:
        descriptor: the descriptor of the file.
        content: the bytes to append.
        size: the size of the file, in bytes.
        is_synced: If True, force the content to disk.

    Raises:
        OSError: the append failed; the file is unchanged.
    """
    try:
        write_all(descriptor, content)
        if is_synced:
            os.fdatasync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size)
        raise
