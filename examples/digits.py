"""The data of the other examples: the 1,797 handwritten digits of scikit-learn, packed as PNGs."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

import storeds


def url(folder: Path) -> str:
    """Return the URL of the store under `folder`."""
    return f"lmdb://{folder.absolute()}/digits.lmdb"


def pack(folder: Path) -> str:
    """Write the digits into the store under `folder`, and return its URL."""
    digits = load_digits()
    folder.mkdir(parents=True, exist_ok=True)
    with storeds.open_writer(url(folder), {"image": "image", "label": "int"}, overwrite=True) as writer:
        for pixels, label in zip(digits.images, digits.target, strict=True):
            png = io.BytesIO()
            Image.fromarray((pixels * 15).astype("uint8")).save(png, "PNG")
            writer.append([{"image": png.getvalue(), "label": int(label)}])
    return url(folder)


def config(
    url: str, fields: Sequence[str] | Mapping[str, str] = ("image", "label"), *, as_dict: bool = False
) -> storeds.Config:
    """Return a config that shuffles, augments, and loads with two workers."""
    crop = {"name": "RandomResizedCrop", "size": 8, "scale": [0.7, 1.0]}
    dataset = {
        "url": url,
        "mode": "L",
        "seed": 7,
        "fields": fields,
        "as_dict": as_dict,
        "transform": [crop, "ToTensor"],
    }
    return storeds.load_config({"dataset": dataset, "loader": {"batch_size": 32, "shuffle": True, "num_workers": 2}})


def network() -> nn.Module:
    """Return a small network, with the same weights at every call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def digest(network: nn.Module) -> str:
    """Return a hash of all weights, which is equal only for weights that are equal bit by bit."""
    weights = [weight.detach().numpy().tobytes() for weight in network.parameters()]
    return hashlib.sha256(b"".join(weights)).hexdigest()[:16]
