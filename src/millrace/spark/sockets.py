"""Quick acknowledgements on the way from the JVM to a Python worker.

Spark sends a task to its worker in several writes over a local TCP connection. The system holds a short write back until the
write before is acknowledged. Linux may delay an acknowledgement for up to 40 ms, in case there is an answer to send along; a
worker that waits for rows has no answer. So a worker asks for acknowledgements at once. Linux grants this for a while only, so
the worker asks again with every task. Unix sockets (`spark.python.unix.domain.socket.enabled`) have no such wait.
"""

from __future__ import annotations

import os
import socket
import stat

_OPTION = getattr(socket, "TCP_QUICKACK", None)  # Linux only
_OPEN_FILES = "/proc/self/fd"


def acknowledge_quickly() -> None:
    """For every TCP connection of this process."""
    if _OPTION is None or not os.path.isdir(_OPEN_FILES):
        return
    for name in os.listdir(_OPEN_FILES):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                _ask(int(name), _OPTION)
        except OSError:
            continue  # closed since it was listed, or not connected: nothing that could be waited for


def _ask(number: int, option: int) -> None:
    with socket.socket(fileno=os.dup(number)) as connection:
        if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
            connection.setsockopt(socket.IPPROTO_TCP, option, 1)
