"""How workers ask for quick acknowledgements."""

from __future__ import annotations

import socket

import pytest

from millrace.spark.sockets import acknowledge_quickly

QUICKACK = getattr(socket, "TCP_QUICKACK", None)


@pytest.mark.skipif(QUICKACK is None, reason="only Linux has the option")
def test_tcp_connections_are_asked_and_others_left_alone() -> None:
    assert QUICKACK is not None
    one, other = socket.socketpair()
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    with one, other, server, client, server.accept()[0] as accepted:
        for connection in (client, accepted):
            connection.setsockopt(socket.IPPROTO_TCP, QUICKACK, 0)
        acknowledge_quickly()
        assert [c.getsockopt(socket.IPPROTO_TCP, QUICKACK) for c in (client, accepted)] == [1, 1]
        client.sendall(b"still open")
        one.sendall(b"too")
        assert (accepted.recv(10), other.recv(3)) == (b"still open", b"too")
