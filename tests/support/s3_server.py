"""A real S3 server on loopback, and a proxy in front of it that counts bytes and breaks answers."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["BreakingProxy", "run_s3"]

KEY, SECRET = "reader", "never-shown"
_BURST = 0.02  # seconds


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextlib.contextmanager
def run_s3(folder: Path) -> Iterator[int]:
    """Run SeaweedFS with one identity and the bucket ``bucket``; give the port of its S3 API."""
    config = folder / "s3.json"
    identity = {"name": KEY, "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin"]}
    config.write_text(json.dumps({"identities": [identity]}))
    master, volume, filer, s3, *grpc = free_ports(8)
    # Unless `port.grpc` is set, the server takes the port plus 10,000, which another process may have.
    options = {
        **{"dir": folder, "ip": "127.0.0.1", "ip.bind": "127.0.0.1", "s3.config": config},
        **{"master.port": master, "volume.port": volume, "filer.port": filer, "s3.port": s3},
        **{
            "master.port.grpc": grpc[0],
            "volume.port.grpc": grpc[1],
            "filer.port.grpc": grpc[2],
            "s3.port.grpc": grpc[3],
        },
        **{"s3.port.iceberg": 0, "s3.port.lance": 0, "master.volumeSizeLimitMB": 64, "volume.max": 100},
    }
    command = [str(Path(sys.executable).with_name("weed")), f"-logdir={folder}", "server", "-filer", "-s3"]
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(
            [*command, *(f"-{name}={value}" for name, value in options.items())], stdout=log, stderr=log
        )
        try:
            for port in (filer, volume, s3):
                _wait_for(port, server)
            made = urllib.request.Request(f"http://127.0.0.1:{filer}/buckets/bucket/", method="POST")  # loopback
            urllib.request.urlopen(made).close()
            yield s3
        finally:
            server.kill()  # ending by itself takes it 25 s
            server.wait()


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if server.poll() is not None:
            raise AssertionError("the S3 server ended")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)  # until the port is open
    raise AssertionError("the S3 server does not answer")


@dataclass
class BreakingProxy:
    """Forwards connections to a port, and counts the bytes that come back.

    `fault` is asked at each connection how many bytes of the answer pass before the connection breaks; None breaks nothing.
    `at_request` is called with the number of each part of a request, before it passes. `rate` is how many bytes a second come back, over all connections; None for no limit.
    After `held_after` bytes, nothing comes back until `release` is set.
    """

    target: int
    fault: Callable[[int], int | None] = lambda _: None
    at_request: Callable[[int], object] = lambda _: None
    rate: float | None = None
    held_after: int | None = None
    release: threading.Event = field(default_factory=threading.Event)
    port: int = 0
    requested: int = 0
    received: int = 0
    connections: int = 0
    _sockets: list[socket.socket] = field(default_factory=list)
    _free: float = 0.0  # when the link has passed on what it was given
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> BreakingProxy:
        server = socket.create_server(("127.0.0.1", 0))
        self.port = int(server.getsockname()[1])
        self._sockets.append(server)
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.close()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                client, _ = server.accept()
                backend = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            self.connections += 1
            left = self.fault(self.connections)
            self._sockets += [client, backend]
            threading.Thread(target=self._pump, args=(client, backend, False, None), daemon=True).start()
            threading.Thread(target=self._pump, args=(backend, client, True, left), daemon=True).start()

    def _pass(self, size: int) -> None:
        if self.held_after is not None and self.received > self.held_after:
            self.release.wait(60)
        if self.rate is not None:
            with self._lock:
                # A sleep that was too long is made up for.
                self._free = max(self._free, time.monotonic() - _BURST) + size / self.rate
                wait = self._free - time.monotonic()
            if wait > 0:
                time.sleep(wait)  # this is what a slow link does

    def _pump(self, source: socket.socket, target: socket.socket, is_answer: bool, left: int | None) -> None:
        try:
            while data := source.recv(1 << 16):
                if is_answer:
                    self.received += len(data)
                    self._pass(len(data))
                else:
                    with self._lock:
                        self.requested += 1
                    self.at_request(self.requested)
                if left is not None:
                    if len(data) > left:
                        target.sendall(data[:left])
                        break
                    left -= len(data)
                target.sendall(data)
        except OSError:
            pass
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def environment(port: int) -> dict[str, str]:
    """Return the variables by which clients find the server."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_REGION": "us-east-1",
    }
