"""Stop after an epoch and resume there, with the Trainer of transformers.

    python examples/train_transformers.py FOLDER

Trains once without a stop, and once stopped and taken up by new objects from the Trainer's checkpoint in FOLDER. Both must
end with the same weights, bit for bit.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import digits
import torch
import transformers
from torch import nn

import storeds

EPOCHS = 2


class Classifier(nn.Module):
    """A network with the interface of transformers: elements of the sample by name, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.network = digits.network()

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss and the logits."""
        logits = self.network(pixel_values)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Trainer(transformers.Trainer):
    """A Trainer whose batches come from storeds."""

    def get_train_dataloader(self) -> torch.utils.data.DataLoader:
        """Return a loader that shuffles and shards by itself."""
        size = self.args.per_device_train_batch_size
        return storeds.StoreLoader(self.train_dataset, batch_size=size, shuffle=True, num_workers=2)


def train(url: str, folder: Path, *, epochs: int, checkpoint: Path | None = None, **options: Any) -> str:
    """Train from `checkpoint` on; return the weights' digest."""
    quiet = {"report_to": [], "disable_tqdm": True, "logging_strategy": "no", "use_cpu": True}
    arguments = transformers.TrainingArguments(
        str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=32,
        learning_rate=0.1,
        lr_scheduler_type="constant",
        **quiet,
        **options,
    )
    # The Trainer passes batches by keyword: name the elements of a sample as the arguments of `forward`.
    names = {"pixel_values": "image", "labels": "label"}
    dataset = storeds.build_dataset(digits.config(url, names, as_dict=True))
    trainer = Trainer(model=Classifier(), args=arguments, train_dataset=dataset)
    trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    print(f"{trainer.state.global_step} steps, weights {digits.digest(trainer.model)}", flush=True)
    return digits.digest(trainer.model)


def main() -> int:
    """Train both ways; exit with 0 if the weights are equal."""
    parser = argparse.ArgumentParser(description="Stop after an epoch and resume there.")
    parser.add_argument("folder", type=Path, help="where the store and the checkpoint go")
    folder = parser.parse_args().folder
    url = digits.pack(folder)
    whole = train(url, folder, epochs=EPOCHS, save_strategy="no")
    train(url, folder, epochs=1, save_strategy="epoch")
    (checkpoint,) = folder.glob("checkpoint-*")
    resumed = train(url, folder, epochs=EPOCHS, checkpoint=checkpoint, save_strategy="no")
    print("the same weights" if resumed == whole else "OTHER WEIGHTS")
    return 0 if resumed == whole else 1


if __name__ == "__main__":
    sys.exit(main())
