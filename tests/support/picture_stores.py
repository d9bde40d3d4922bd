"""Make small stores in memory, and folders of other tools, for the tests of readers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lmdb
from PIL import Image

from make_store import make_store
from storeds.transforms import Compose

__all__ = ["exif", "foreign", "hidden", "picture_store"]


def picture_store(blobs: Sequence[bytes], *, check: bool = True) -> str:
    """Return the URL of a store of pictures, each with its position as its label."""
    records = [{"image": blob, "label": at} for at, blob in enumerate(blobs)]
    return make_store({"image": "image", "label": "int"}, records, check=check)


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
