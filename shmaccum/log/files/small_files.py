# SPDX-License-Identifier: Apache-2.0
"""The small files of a log directory: text in Kafka's formats, replaced as a whole.

Replacing: write the new content beside the file, (sync it,) rename it over the old one, (sync the folder.) A death
anywhere leaves the old content or the new one, and perhaps a ``.tmp`` file that the next writer removes; with the two
syncs that holds for a crash of the host too.
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
    """Gives a file new content, all or nothing for every other process; for a file that is checked when it is read.

    Raises:
        OSError: the old content is still there.
    """
    with _replacing(path) as descriptor:
        write_all(descriptor, content)


def replace_file_synced(path: str, content: bytes) -> None:
    """Gives a file new content, all or nothing also after a crash of the host.

    Raises:
        OSError: the old content is still there, or (syncing the folder failed) either.
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
    """Writes to the end of a file, however often the system writes only a part."""
    written = os.write(descriptor, content)
    rest = memoryview(content)[written:] if written < len(content) else b""
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def read_properties(path: str) -> dict[str, str]:
    """A Java properties file as Kafka writes it: comments, and one ``key=value`` a line."""
    with open(path, encoding="utf-8", errors="replace", opener=open_regular) as file:
        pairs = [line.strip().partition("=") for line in file if "=" in line and not line.startswith("#")]
    return {key.strip(): value.strip() for key, _, value in pairs}


def properties(values: Mapping[str, str]) -> bytes:
    """The text of such a file."""
    return "".join(f"{key}={value}\n" for key, value in values.items()).encode()


def uuid_text(value: bytes) -> str:
    """16 bytes as Kafka writes a uuid: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def parse_uuid(text: str) -> bytes:
    """The 16 bytes of Kafka's text of a uuid.

    Raises:
        NotALogError: it is none.
    """
    try:
        value = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        value = b""
    if len(value) != UUID_SIZE:
        raise NotALogError(f"{text!r} is no uuid as Kafka writes them")
    return value


def read_directory_id(path: str) -> bytes:
    """The 16 bytes of the id of a log directory, from its ``meta.properties``.

    Raises:
        NotALogError: the file has no id.
        OSError: the file cannot be read.
    """
    try:
        return parse_uuid(read_properties(path).get(META_UUID_KEY, ""))
    except NotALogError as error:
        raise NotALogError(
            f"{path} has no {META_UUID_KEY} ({error}): copy the file back from a backup, or write "
            f"{META_UUID_KEY}={uuid_text(os.urandom(UUID_SIZE))} into it, which makes the log a new one for its clients"
        ) from None


def offsets_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Kafka's OffsetCheckpointFile: version, count, then ``topic partition offset`` a line."""
    lines = [CHECKPOINT_VERSION, str(len(offsets))]
    lines += [f"{place.topic} {place.partition} {offset}" for place, offset in sorted(offsets.items())]
    return "".join(line + "\n" for line in lines).encode()


def read_offsets_checkpoint(path: str) -> dict[TopicPartition, int]:
    """The offsets that `offsets_checkpoint` wrote. A missing or damaged file has none, which costs time and no data."""
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
    """The two small files that Kafka keeps in each partition's folder, unless they are there. The id comes last.

    Args:
        folder: the partition's.
        topic_id: the id of its topic; a topic that lost its id would count as another one.
        is_synced: content and names are forced to disk, those that a dead writer left, too.
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
    """Forces a file that is not open to disk."""
    descriptor = open_regular(path, os.O_RDONLY)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def read_topic_id(folder: str) -> bytes | None:
    """The id of its topic that a partition's folder has; None where it has none yet.

    Raises:
        OSError: the file cannot be read.
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
    """Appends all of it to a file that was opened to append, or nothing.

    Args:
        descriptor: of the file.
        content: to be appended.
        size: of the file, in bytes.
        is_synced: force it to disk.

    Raises:
        OSError: the file is as it was.
    """
    try:
        write_all(descriptor, content)
        if is_synced:
            os.fdatasync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size)
        raise
