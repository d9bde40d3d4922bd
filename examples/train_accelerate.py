"""Stop in the middle of an epoch and resume exactly there, with Accelerate, in one process or several.

    python examples/train_accelerate.py FOLDER
    accelerate launch --cpu --num_processes 2 examples/train_accelerate.py FOLDER

Trains once without a stop, and once stopped and taken up by new objects from Accelerate's checkpoint in FOLDER. Both must
end with the same weights, bit for bit, and the processes together must have seen every sample of every epoch.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import digits
import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import nn

import storeds

EPOCHS = 2


def train(url: str, checkpoint: Path, *, resume: bool = False, stop: int | None = None) -> tuple[str, list[int]]:
    """Train; return the weights' digest, and the number of different samples that all processes saw in each epoch."""
    accelerator = Accelerator(cpu=True)
    # Do not pass it to `prepare`, which would shard the batches again, fetch one batch ahead of the training loop, and
    # count the epochs from 0 after a resume. `EpochSampler` shards epochs between the processes.
    loader = storeds.build_loader(digits.config(url, fields=("image", "label", "index")))
    accelerator.register_for_checkpointing(loader)
    network = digits.network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    network, optimizer = accelerator.prepare(network, optimizer)
    if resume:
        accelerator.load_state(checkpoint)
    seen: list[set[int]] = [set() for _ in range(EPOCHS)]
    step = 0
    for epoch in range(loader.sampler.epoch, EPOCHS):
        for batch in loader:  # first the rest of the epoch that was loaded, then whole ones
            images, labels, indices = send_to_device(batch, accelerator.device)
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(network(images), labels))
            optimizer.step()
            seen[epoch].update(accelerator.gather(indices).tolist())
            step += 1
            if step == stop:
                accelerator.save_state(checkpoint)
                return "", [len(each) for each in seen]
    weights = digits.digest(accelerator.unwrap_model(network))
    accelerator.print(f"{step} steps of {accelerator.num_processes} processes, weights {weights}")
    return weights, [len(each) for each in seen]


def main() -> int:
    """Train both ways; exit with 0 if the weights are equal."""
    parser = argparse.ArgumentParser(description="Stop in the middle of an epoch and resume exactly there.")
    parser.add_argument("folder", type=Path, help="where the store and the checkpoint go, the same for all processes")
    parser.add_argument("--stop", type=int, default=40, help="after so many steps; an epoch has 57 over all processes")
    given = parser.parse_args()
    accelerator, checkpoint = Accelerator(cpu=True), given.folder / "checkpoint"
    with accelerator.main_process_first():
        url = digits.pack(given.folder) if accelerator.is_main_process else digits.url(given.folder)
    whole, seen = train(url, checkpoint)
    _, before = train(url, checkpoint, stop=given.stop)
    resumed, after = train(url, checkpoint, resume=True)
    accelerator.print(f"samples seen without a stop: {seen}; before it: {before}; after it: {after}")
    accelerator.print("the same weights" if resumed == whole else "OTHER WEIGHTS")
    accelerator.end_training()
    return 0 if resumed == whole else 1


if __name__ == "__main__":
    sys.exit(main())
