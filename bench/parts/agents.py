# SPDX-License-Identifier: Apache-2.0
"""The syslog daemons rsyslog and syslog-ng as agents: programs log to a socket of the host, and the agent sends to
Kafka.

Their configurations follow their documentation. Both keep records in a queue of the output that extends to the disk, so
that an outage of Kafka loses nothing. The queue of rsyslog is in memory, and moves to the disk when it is long and at a
clean exit. The queue of syslog-ng is "reliable", so each record is written to the disk. After a failure, both retry
after one second instead of their defaults of 30 and 60 seconds. The name of the program is the key of a record.
"""

from __future__ import annotations

from pathlib import Path

from bench.harness import debian

RSYSLOG = """
global(workDirectory="{folder}" internalmsg.severity="emerg")
module(load="imuxsock" SysSock.Use="off")
module(load="omkafka")
template(name="key" type="string" string="%programname%")
template(name="value" type="string" string="%msg:2:$%")
input(type="imuxsock" Socket="{socket}")
action(
    type="omkafka" broker=["{bootstrap}"] topic="{topic}" template="value" key="key" dynaKey="on" partitions.auto="on"
    confParam=["socket.keepalive.enable=true", "linger.ms={linger_ms}"]
    resubmitOnFailure="on" keepFailedMessages="on" failedMsgFile="{folder}/failed"
    action.resumeRetryCount="-1" action.resumeInterval="1"
    queue.type="LinkedList" queue.filename="kafka" queue.maxDiskSpace="{disk_size}" queue.saveOnShutdown="on"
)
"""

SYSLOG_NG = """
@version: 3.38
source host {{ unix-dgram("{socket}"); }};
destination kafka {{
    kafka-c(
        bootstrap-servers("{bootstrap}") topic("{topic}") key("${{PROGRAM}}") message("${{MESSAGE}}")
        config("socket.keepalive.enable" => "true" "linger.ms" => "{linger_ms}") time-reopen(1)
        disk-buffer(reliable(yes) mem-buf-size(10485760) disk-buf-size({disk_size}) dir("{folder}"))
    );
}};
log {{ source(host); destination(kafka); flags(flow-control); }};
"""

DISK_SIZE = 1 << 30


def rsyslog(folder: Path, bootstrap: str, topic: str, linger_ms: int, disk_size: int = DISK_SIZE) -> list[str]:
    """Write the configuration into `folder`, and return the command. The socket is ``folder/socket``."""
    program = debian.find("rsyslogd")
    configuration = _write(RSYSLOG, folder, bootstrap, topic, linger_ms, disk_size)
    modules = ["-M", str(program.modules)]
    return [*program.command(), "-n", "-f", str(configuration), "-i", str(folder / "pid"), *modules]


def syslog_ng(folder: Path, bootstrap: str, topic: str, linger_ms: int, disk_size: int = DISK_SIZE) -> list[str]:
    """Write the configuration into `folder`, and return the command. The socket is ``folder/socket``."""
    program = debian.find("syslog-ng")
    configuration = _write(SYSLOG_NG, folder, bootstrap, topic, linger_ms, disk_size)
    files = {"-f": configuration, "-R": folder / "persist", "-p": folder / "pid", "-c": folder / "control"}
    words = [str(word) for option in files.items() for word in option]
    return [*program.command(), "--foreground", "--no-caps", f"--module-path={program.modules}", *words]


def _write(text: str, folder: Path, bootstrap: str, topic: str, linger_ms: int, disk_size: int) -> Path:
    facts = {"bootstrap": bootstrap, "topic": topic, "linger_ms": linger_ms, "disk_size": disk_size}
    path = folder / "configuration"
    path.write_text(text.format(folder=folder, socket=folder / "socket", **facts), encoding="utf-8")
    return path
