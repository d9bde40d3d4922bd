"""A real S3 server with a proxy in front of it, and small stores to put there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from s3_server import BreakingProxy, environment, run_s3


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with run_s3(tmp_path_factory.mktemp("s3")) as port:
        yield port


@pytest.fixture(scope="package")
def bucket(server: int) -> Any:
    """What puts and deletes objects, and is no part of storeds."""
    from obstore.store import S3Store

    variables = environment(server)
    return S3Store(
        "bucket",
        endpoint=variables["AWS_ENDPOINT_URL"],
        access_key_id=variables["AWS_ACCESS_KEY_ID"],
        secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
        region="us-east-1",
        client_options={"allow_http": True},
    )


@pytest.fixture
def proxy(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[BreakingProxy]:
    """A proxy before the server, which clients of this test use."""
    with BreakingProxy(server) as proxy:
        for name, value in environment(proxy.port).items():
            monkeypatch.setenv(name, value)
        yield proxy
