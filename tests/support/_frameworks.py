"""Train for three epochs with each framework that takes a DataLoader, and log every batch.

A script: ``python _frameworks.py FRAMEWORK URL`` prints, for each way twice: its name, the seed, and the numbers given, which
are those of `_jittered.jittered`. The ways are ``loader``, for a loader of storeds, and ``sampler``, for PyTorch's own over
an `EpochSampler`, with a worker. Accelerate and transformers set the epoch of a dataset in their own loaders, too.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

import storeds
from _jittered import jittered_dataset
from _torchvision import enable_torchvision

__all__ = ["FRAMEWORKS"]

EPOCHS = 3

enable_torchvision()


class Network(torch.nn.Module):
    """Notes what it is given, and learns something."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.given: list[float] = []

    def forward(self, x: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        self.given += [round(float(value), 9) for value in x.flatten()]
        return {"loss": (x * self.weight - 1).square().mean().float()}


def make_loader(url: str, seed: int | None, what: str) -> Any:
    dataset = jittered_dataset(url, seed)
    if what == "loader":
        return storeds.StoreLoader(dataset, batch_size=4, shuffle=True)
    if what == "sampler":
        return DataLoader(dataset, 4, sampler=storeds.EpochSampler(dataset), num_workers=1)
    return DataLoader(dataset, 4, shuffle=True)


def by_lightning(url: str, seed: int | None, what: str) -> list[float]:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = Network()

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss: torch.Tensor = self.network(batch[0])["loss"]
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.001)

    module = Module()
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=EPOCHS, accelerator="cpu", devices=1, enable_checkpointing=False, **quiet)
    trainer.fit(module, make_loader(url, seed, what))
    return module.network.given


def by_accelerate(url: str, seed: int | None, what: str) -> list[float]:
    import accelerate  # type: ignore[import-untyped]

    accelerator = accelerate.Accelerator(cpu=True)
    network = Network()
    loader = accelerator.prepare(make_loader(url, seed, what))
    for _ in range(EPOCHS):
        for (x,) in loader:
            network(x)
    return network.given


def by_fastai(url: str, seed: int | None, what: str) -> list[float]:
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner
    from fastai.optimizer import SGD

    class Inputs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = Network()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = self.network(x)["loss"]
            return loss

    class TrainOnly(Learner):  # type: ignore[misc]
        def _do_epoch_validate(self, *_: Any, **__: Any) -> None:
            """Leave validation out."""

    loader = make_loader(url, seed, what)
    module = Inputs()
    learner = TrainOnly(DataLoaders(loader, loader), module, loss_func=lambda loss, *_: loss, opt_func=SGD)
    learner.remove_cbs([each for each in learner.cbs if type(each).__name__ in ("ProgressCallback", "Recorder")])
    learner.n_inp = 1
    learner.fit(EPOCHS, 0.001)
    return module.network.given


def by_transformers(url: str, seed: int | None, what: str) -> list[float]:
    import transformers

    def collate(samples: list[Any]) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor([x for (x,) in samples])}

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            if what == "dataset":
                return super().get_train_dataloader()
            if what == "loader":
                return storeds.StoreLoader(dataset, batch_size=4, shuffle=True, collate_fn=collate)
            return DataLoader(dataset, 4, sampler=storeds.EpochSampler(dataset), num_workers=1, collate_fn=collate)

    network, dataset = Network(), jittered_dataset(url, seed)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=4,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            logging_strategy="no",
            remove_unused_columns=False,
            seed=torch.initial_seed() % 2**31,
        )
        Trainer(model=network, args=arguments, train_dataset=dataset, data_collator=collate).train()
    return network.given


# By name: function of the store's URL, the seed and the way.
FRAMEWORKS: dict[str, Callable[[str, int | None, str], list[float]]] = {
    "lightning": by_lightning,
    "accelerate": by_accelerate,
    "fastai": by_fastai,
    "transformers": by_transformers,
}


def main(framework: str, url: str) -> None:
    """Print for each way: what, seed, and what came in the epochs."""
    warnings.simplefilter("ignore")
    ways: list[tuple[str, int | None]] = [("loader", 7), ("loader", None), ("sampler", 7)]
    if framework in ("accelerate", "transformers"):
        ways[2:] = [("dataset", 7)]
    for what, seed in ways:
        for _ in range(2):
            torch.manual_seed(3)
            print(json.dumps([what, seed, FRAMEWORKS[framework](url, seed, what)]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
