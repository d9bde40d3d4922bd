"""Stop in the middle of an epoch and resume exactly there, with Lightning.

    python examples/train_lightning.py FOLDER

Trains once without a stop, and once stopped and taken up by new objects from Lightning's checkpoint in FOLDER. Both must
end with the same weights, bit for bit.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import digits
import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

import storeds

EPOCHS = 2
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


class Classifier(lightning.LightningModule):
    """A network, and the loader of its samples."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url, self.network = url, digits.network()

    def train_dataloader(self) -> torch.utils.data.DataLoader:
        """Return a loader whose state Lightning puts into its checkpoints, because it has `state_dict`.

        It is made here because Lightning has initialised torch.distributed by now.
        """
        return storeds.build_loader(digits.config(self.url))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss."""
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def train(url: str, checkpoint: Path | None = None, **options: Any) -> str:
    """Train from `checkpoint` on; return the weights' digest."""
    model = Classifier(url)
    # Lightning's own distributed sampler would shard each rank's samples again.
    trainer = lightning.Trainer(accelerator="cpu", devices=1, use_distributed_sampler=False, **QUIET, **options)
    trainer.fit(model, ckpt_path=checkpoint)
    print(f"{trainer.global_step} steps, weights {digits.digest(model)}", flush=True)
    return digits.digest(model)


def main() -> int:
    """Train both ways; exit with 0 if the weights are equal."""
    parser = argparse.ArgumentParser(description="Stop in the middle of an epoch and resume exactly there.")
    parser.add_argument("folder", type=Path, help="where the store and the checkpoint go")
    parser.add_argument("--stop", type=int, default=70, help="after so many steps; an epoch has 57")
    given = parser.parse_args()
    url = digits.pack(given.folder)
    whole = train(url, max_epochs=EPOCHS, enable_checkpointing=False)
    # Saves while the loop is running: after a stop, `trainer.save_checkpoint` would treat the unfinished epoch as done.
    keep = ModelCheckpoint(given.folder, "checkpoint", every_n_train_steps=given.stop, enable_version_counter=False)
    train(url, max_steps=given.stop, callbacks=[keep])
    resumed = train(url, given.folder / "checkpoint.ckpt", max_epochs=EPOCHS, enable_checkpointing=False)
    print("the same weights" if resumed == whole else "OTHER WEIGHTS")
    return 0 if resumed == whole else 1


if __name__ == "__main__":
    sys.exit(main())
