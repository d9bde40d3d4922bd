"""Transforms for training image classifiers, over Pillow images and torch tensors, and their configs.

They mean the same as torchvision's transforms of these names, and draw the same numbers from the same generator state.
A transform takes its randomness from the `torch.Generator` that it is called with; None stands for torch's global one.
Configs name other transforms by their dotted path (`build_transform`); `BoundTransform` gives them their randomness.

Images are `PIL.Image.Image` or tensors of shape (..., channels, height, width), uint8 or floating. No transform changes
the image that it gets, except with ``inplace=True``. A transform with nothing to do returns the image itself.
"""

from storeds.transforms.binding import BoundTransform, Compose, Views
from storeds.transforms.building import build_transform
from storeds.transforms.images import (
    CenterCrop,
    Crop,
    FilterBoxes,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToTensor,
)
from storeds.transforms.operations import Operation
from storeds.transforms.samples import JointTransform

# Read images.py first, then binding.py, building.py, operations.py and samples.py. alignment.py judges transforms.
__all__ = [
    "BoundTransform",
    "CenterCrop",
    "Compose",
    "Crop",
    "FilterBoxes",
    "JointTransform",
    "Normalize",
    "Operation",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "ToTensor",
    "Views",
    "build_transform",
]
