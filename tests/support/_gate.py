"""A TCP proxy in front of a MongoDB server that holds back answers to queries until a test releases them."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

__all__ = ["Gate"]

_ANSWER = b"firstBatch"  # part of every answer to a query, and of no answer to a heartbeat


class Gate:
    """Forwards every connection to `address`; a context manager.

    Attributes
    ----------
    port : int
        The port of the loopback interface that it listens on.
    withheld : threading.Event
        Set while it holds an answer back.
    threads : list of threading.Thread
        The threads that it runs.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open, self.withheld = threading.Event(), threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        self.threads: list[threading.Thread] = []
        self._start(self._accept)

    def shut(self) -> None:
        """Hold answers back from now on."""
        self.withheld.clear()
        self._open.clear()

    def open(self) -> None:
        """Forward every answer."""
        self._open.set()

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self.threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._address)
                self._sockets += [client, server]
                self._start(self._pump, client, server)
                self._start(self._pump, server, client)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                if _ANSWER in data and not self._open.is_set():
                    self.withheld.set()
                    self._open.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open()
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()
        for each in (self._listener, *self._sockets):
            each.close()
