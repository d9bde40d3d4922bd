"""Make small stores in memory, and folders of other tools, for the tests of readers."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lmdb
from PIL import Image

from storeds import open_writer
from storeds.transforms import Compose

__all__ = ["exif", "foreign", "hidden", "memory_store", "picture_store"]


def memory_store(
    fields: Mapping[str, Any], records: Sequence[Mapping[str, Any]], *, check: bool = True, **attrs: Any
) -> str:
    """Return the URL of a new store; without `check` its pictures have no verdicts, as those of another tool."""
    url = f"memory://store-{secrets.token_hex(8)}"
    with open_writer(url, fields, check=check) as writer:
        writer.append(map(dict, records))
        writer.publish(attrs=attrs)
    return url


def picture_store(blobs: Sequence[bytes], *, check: bool = True) -> str:
    """Return the URL of a store of pictures, each with its position as its label."""
    records = [{"image": blob, "label": at} for at, blob in enumerate(blobs)]
    return memory_store({"image": "image", "label": "int"}, records, check=check)


def foreign(folder: Path, blobs: Sequence[bytes]) -> str:
    """Return the URL of an LMDB that another tool wrote."""
    with lmdb.open(f"{folder}/foreign", map_size=1 << 26) as env, env.begin(write=True) as transaction:
        for number, blob in enumerate(blobs):
            transaction.put(b"%04d.jpg" % number, blob)
    return f"lmdb://{folder}/foreign"


def exif(orientation: int) -> bytes:
    """Return metadata with an orientation."""
    metadata = Image.Exif()
    metadata[0x0112] = orientation
    return metadata.tobytes()


def hidden(transform: Any) -> Callable[..., Any]:
    """Return a transform of which nobody sees that it begins with a crop, so that whole pictures are decoded."""
    inner = Compose([transform])

    def whole(image: Any, generator: Any = None) -> Any:
        return inner(image, generator)

    return whole
