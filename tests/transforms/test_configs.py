"""Test how configs build transforms, and what they say where they cannot."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from storeds.errors import ConfigError, MissingDependencyError
from storeds.protocols import SampleContext
from storeds.transforms import (
    BoundTransform,
    Compose,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToTensor,
    build_transform,
)

v2 = pytest.importorskip("torchvision.transforms.v2")


def brighten(value: float, amount: float = 1.0) -> float:
    return value + amount


class Scale:
    def __init__(self, factor: float, *, offset: float = 0) -> None:
        if factor < 0:
            raise ValueError("factor is negative")
        self.factor, self.offset = factor, offset

    def __call__(self, value: float) -> float:
        return value * self.factor + self.offset


class Inert:
    pass


answer = 42
HERE = __name__


def test_none_and_callables_pass_through() -> None:
    assert build_transform(None) is None
    for transform in (brighten, ToTensor(), int):
        assert build_transform(transform) is transform


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("ToTensor", ToTensor()),
        ({"name": "Resize", "size": [4, 5]}, Resize((4, 5))),
        (
            [{"name": "RandomResizedCrop", "size": 224, "scale": [0.5, 1]}, RandomHorizontalFlip(), "ToTensor"],
            Compose([RandomResizedCrop(224, (0.5, 1.0)), RandomHorizontalFlip(), ToTensor()]),
        ),
        ([], Compose([])),
        ({"name": "Compose", "transforms": ["ToTensor"]}, Compose([ToTensor()])),
        ([["ToTensor"], "ToTensor"], Compose([Compose([ToTensor()]), ToTensor()])),
        (f"{HERE}.brighten", brighten),
        ("numpy.linalg.norm", np.linalg.norm),
    ],
)
def test_names_mappings_and_lists_build_transforms(spec: Any, expected: Any) -> None:
    assert build_transform(spec) == expected


def test_dotted_paths_reach_any_class_or_function() -> None:
    for path in (f"{HERE}:Scale", f"{HERE}.Scale"):
        scale: Any = build_transform({"name": path, "factor": 3, "offset": 1})
        assert isinstance(scale, Scale)
        assert scale(2) == 7
    partial: Any = build_transform({"name": f"{HERE}:brighten", "amount": 5})
    assert isinstance(partial, functools.partial)
    assert partial(1) == 6
    module = build_transform({"name": "torch.nn.Threshold", "threshold": 0.5, "value": 0.0})
    assert isinstance(module, torch.nn.Threshold)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"name": "ColorJitter", "brightness": 0.4}, v2.ColorJitter(0.4)),
        ({"name": "RandomRotation", "degrees": 20, "interpolation": "bilinear"}, v2.RandomRotation(20, v2.InterpolationMode.BILINEAR)),
        ({"name": "ToDtype", "dtype": "float64", "scale": True}, v2.ToDtype(torch.float64, scale=True)),
        ({"name": "RandomApply", "transforms": ["RandomInvert"], "p": 0.5}, v2.RandomApply([v2.RandomInvert()], 0.5)),
        ({"name": "RandomApply", "transforms": [{"name": "ColorJitter", "hue": 0.5}]}, v2.RandomApply([v2.ColorJitter(hue=0.5)])),
    ],
)  # fmt: skip
def test_other_names_are_those_of_torchvision(spec: Any, expected: Any) -> None:
    found: Any = build_transform(spec)
    assert repr(found) == repr(expected)
    image = torch.randint(0, 256, (3, 20, 30), dtype=torch.uint8)
    for seed in range(5):
        first, second = (BoundTransform(each)(image, SampleContext(seed, seed=7)) for each in (found, expected))
        assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (3, "transform: expected a callable, a name, a mapping .* not 3"),
        ("Resise", "transform: unknown transform 'Resise'; did you mean 'Resize'. The transforms are AugMix, .*dotted path"),
        ([["ToTensor"], ["Resise"]], r"transform\[1\]\[0\]: unknown transform"),
        ({"size": 3}, "transform: a mapping needs the transform's 'name', a string.* it is {'size': 3}"),
        ({"name": "Resize", "sise": 3}, "'Resize': .*unexpected .*'sise'; did you mean 'size'. The arguments are size, inter"),
        ("Resize", "transform: 'Resize': missing a required argument: 'size'; the arguments are size, interpolation"),
        ([{"name": "Resize", "size": -3}], r"transform\[0\]: Resize: size=-3"),
        ({"name": "Compose", "transforms": "ToTensor"}, "transform: Compose: transforms must be a list"),
        ({"name": "Views", "transforms": [["Resise"]]}, r"transform.transforms\[0\]\[0\]: unknown transform"),
        ({"name": "albumentations.Compose", "transforms": [{"name": "albumentations.RandomCrop", "hight": 8}]},
         r"transform\.transforms\[0\]: 'albumentations.RandomCrop': .*'hight'"),
        ({"name": f"{HERE}:brighten", "amuont": 5}, "argument 'amuont'; did you mean 'amount'. The arguments are amount"),
        ({"name": f"{HERE}:Scale", "factor": -1}, r":Scale' refuses the arguments {'factor': -1}: ValueError: factor is negative"),
        (f"{HERE}:Inert", "an instance of .*:Inert' is not callable"),
        (f"{HERE}:answer", ":answer' is not callable: it is 42"),
        (f"{HERE}:Scael", f"'{HERE}:Scael' cannot be imported: .* no attribute 'Scael'; did you mean 'Scale'"),
        ({"name": "ToDtype", "dtype": "float23"}, "'float23' is not a dtype of torch"),
        ("../evil.py", "must have the form package.module.Name or package.module:Name"),
        ("storeds_test_broken:Name", "cannot be imported: ZeroDivisionError"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_built_says_why(
    spec: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "storeds_test_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=message):
        build_transform(spec)


def test_what_is_not_installed_is_a_missing_dependency(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingDependencyError, match="'nosuch.v2.x.Name' cannot be imported: No module named 'nosuch'"):
        build_transform("nosuch.v2.x.Name")
    monkeypatch.setitem(sys.modules, "torchvision.transforms", None)
    with pytest.raises(MissingDependencyError, match=r"'ColorJitter' is not built in.*pip install 'storeds\[vision\]'"):
        build_transform("ColorJitter")
