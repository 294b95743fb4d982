"""Listens at a port of somebody else, answers nobody, and prints what it is sent."""

from __future__ import annotations

import socket
import sys

with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    while True:
        connection, _ = server.accept()
        with connection:
            sys.stdout.write(connection.recv(10_000).decode(errors="replace"))
            sys.stdout.flush()
            connection.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
