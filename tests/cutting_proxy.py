"""A proxy between a client and PostgreSQL that cuts connections at a chosen point, or is unreachable."""

from __future__ import annotations

import contextlib
import socket
import threading


class CuttingProxy:
    """Forwards bytes between clients and a server, and cuts connections at a chosen point."""

    def __init__(self, port):
        self._to = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.cut_before = b""  # cut before forwarding the client's message that contains this
        self.cut_after = b""  # forward the client's message that contains this, but not the answer
        self.skips = 0  # how many such messages are forwarded before
        self.passed = 0  # how many bytes of a cut answer are forwarded
        self.last_words = b""  # sent to the client instead of the rest of a cut answer
        self.was_whole = False  # whether an answer was not longer than `passed`, so that nothing was cut
        self.cut_at = None  # cut the connection on which the server has answered this many bytes in total
        self.answered = 0  # total bytes answered
        self.cuts = 0
        self.goes_down_with_cut = False  # whether the next cut starts an outage
        self._lines = []
        self._is_down = False
        threading.Thread(target=self._accept, daemon=True).start()

    def url_through(self, url):
        """Return the URL of a server through this proxy."""
        return f"{url.replace(f':{self._to}/', f':{self.port}/')}?allow_unsafe=true&sslmode=disable"

    def _accept(self):
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            if self._is_down:
                hang_up(client)
                continue
            server = socket.create_connection(("127.0.0.1", self._to))
            self._lines += [client, server]
            line = {"is_mute": False}
            threading.Thread(target=self._forth, args=(client, server, line), daemon=True).start()
            threading.Thread(target=self._back, args=(client, server, line), daemon=True).start()

    def _forth(self, client, server, line):
        try:
            while data := client.recv(1 << 16):
                if self.cut_before and self.cut_before in data:
                    self.cut_before = b""
                    self._cut()
                    break
                if self.cut_after and self.cut_after in data:
                    self.skips -= 1
                    if self.skips < 0:
                        self.skips, self.cut_after = 0, b""
                        line["is_mute"] = True
                server.sendall(data)
        except OSError:
            pass
        hang_up(client)
        hang_up(server)

    def _back(self, client, server, line):
        try:
            while data := server.recv(1 << 16):
                if line["is_mute"]:
                    self.was_whole = len(data) < self.passed
                    if not self.was_whole:
                        self._cut()
                        client.sendall(data[: self.passed] + self.last_words)
                        break
                    line["is_mute"] = False
                self.answered += len(data)
                if self.cut_at is not None:
                    self.cut_at -= len(data)
                    if self.cut_at < 0:
                        client.sendall(data[: self.cut_at])
                        self.cut_at = None
                        self._cut()
                        break
                client.sendall(data)
        except OSError:
            pass
        hang_up(client)
        hang_up(server)

    def _cut(self):
        self.cuts += 1
        if self.goes_down_with_cut:
            self.goes_down_with_cut = False
            self.go_down()

    def go_down(self):
        """Cut all connections, also new ones, like an unreachable server."""
        self._is_down = True
        lines, self._lines = self._lines, []
        for line in lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)  # the process that reads from it closes it

    def come_up(self):
        """Let clients through again."""
        self._is_down = False

    def close(self):
        self._server.close()


def hang_up(connection):
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    connection.close()
