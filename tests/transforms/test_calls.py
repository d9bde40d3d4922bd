"""Test how transforms are called: the randomness of one sample, threads, forks, and steps that wait for the batch."""

from __future__ import annotations

import functools
import os
import pickle
import random
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from storeds.protocols import SampleContext
from storeds.transforms import (
    BoundTransform,
    Compose,
    RandomHorizontalFlip,
    build_transform,
)

IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 30, 3), dtype=np.uint8))


def apply(transform: Any, value: Any, context: SampleContext) -> Any:
    return BoundTransform(transform)(value, context)


def draw_all(value: Any) -> list[float]:
    """What a foreign transform sees: one number of each global generator."""
    return [torch.rand(1).item(), float(np.random.rand()), random.random()]


def draw_more(value: Any) -> Any:
    return [*value, *draw_all(value)]


def fail(value: Any) -> Any:
    draw_all(value)
    np.random.randn()  # leaves half a pair behind, which belongs to the state
    raise RuntimeError("no")


def global_states() -> tuple[Any, ...]:
    legacy: Any = np.random.get_state(legacy=False)
    return torch.get_rng_state().tolist(), legacy["state"]["key"].tolist(), legacy["gauss"], random.getstate()


@pytest.fixture
def states() -> Any:
    np.random.randn()
    before = global_states()
    yield before
    assert global_states() == before


@pytest.mark.parametrize("transform", [draw_all, Compose([draw_all]), functools.partial(draw_all)])
def test_foreign_transforms_are_reproducible_under_a_seed(transform: Any, states: Any) -> None:
    bound = BoundTransform(transform)
    first = bound(0, SampleContext(3, epoch=1, seed=7))
    assert first == pickle.loads(pickle.dumps(bound))(0, SampleContext(3, epoch=1, seed=7))
    assert first == apply(transform, 0, SampleContext(3, epoch=1, seed=7))
    others = [SampleContext(4, 1, 7), SampleContext(3, 2, 7), SampleContext(3, 1, 8)]
    for number in range(3):
        assert len({first[number], *(bound(0, other)[number] for other in others)}) == 4


def test_transforms_of_one_sample_get_different_numbers(states: Any) -> None:
    context = SampleContext(1, seed=0)
    drawn = apply(Compose([draw_all, draw_more, Compose([draw_more])]), 0, context)
    assert len({*drawn, *apply(draw_all, 0, context)}) == 12


@pytest.mark.parametrize("transform", [fail, Compose([draw_all, fail])])
def test_global_states_come_back_when_a_transform_raises(transform: Any, states: Any) -> None:
    with pytest.raises(RuntimeError, match=r"^no$"):
        apply(transform, 0, SampleContext(1, seed=0))


def test_without_a_seed_foreign_transforms_are_just_called() -> None:
    with torch.random.fork_rng(devices=[]):
        drawn = []
        for call in (draw_all, lambda value: apply(draw_all, value, SampleContext(9))):
            for seed in (torch.manual_seed, np.random.seed, random.seed):
                seed(5)
            drawn.append(call(0))
        expected = drawn[0]
        assert drawn == [expected, expected]
        assert apply(Compose([draw_more]), [], SampleContext(9)) not in ([], expected)


def test_steps_done_together_or_later_leave_what_follows_the_same_numbers(states: Any) -> None:
    """Nor do steps that draw nothing change a number."""
    image = torch.arange(192, dtype=torch.uint8).reshape(3, 8, 8)
    scaling: list[Any] = ["ToTensor", {"name": "Normalize", "mean": [0.5], "std": [0.5]}]
    for index in range(20):
        together, apart, later = (SampleContext(index, seed=2) for _ in range(3))
        joined = apply(
            build_transform([{"name": "Resize", "size": 8}, *scaling, "RandomHorizontalFlip"]), image, together
        )
        value: Any = image
        for step in [*scaling, "RandomHorizontalFlip"]:
            value = apply(build_transform(step), value, apart)
        assert torch.equal(joined, value)
        flipped: Any = build_transform(["RandomHorizontalFlip", *scaling])
        BoundTransform(flipped)(image, later, whole=False)
        assert apply(draw_all, 0, together) == apply(draw_all, 0, apart) == apply(draw_all, 0, later)


class Torchlike(torch.nn.Module):
    def forward(self, value: Any, generator: torch.Generator | None = None) -> Any:
        return generator


def keyword_only(value: Any, *, generator: Any) -> Any:
    return generator


OWN = SampleContext(1, seed=0)


@pytest.mark.parametrize(
    ("transform", "received"),
    [
        (Torchlike(), OWN.generator),
        (keyword_only, OWN.generator),
        (functools.partial(keyword_only), OWN.generator),
        (functools.partial(keyword_only, generator="mine"), "mine"),
        (Compose([Compose([lambda value, generator=3: generator])]), OWN.generator),
        (lambda generator: generator, "value"),  # the first parameter takes the value
        (lambda *values, **names: names.get("generator"), None),
        (str, "value"),  # has no signature
    ],
)
def test_a_parameter_named_generator_gets_the_samples(transform: Any, received: Any) -> None:
    assert apply(transform, "value", OWN) is received


def test_a_foreign_transform_may_hold_ours(states: Any) -> None:
    inner = Compose([RandomHorizontalFlip(), draw_all])
    results = [apply(lambda value: inner(value), IMAGE, SampleContext(1, seed=0)) for _ in range(2)]
    assert results[0] == results[1]
    nested = BoundTransform(draw_all)
    apply(lambda value: nested(value, SampleContext(2, seed=0)), 0, SampleContext(1, seed=0))


def test_threads_do_not_mix_their_foreign_randomness(states: Any) -> None:
    bound = BoundTransform(Compose([draw_all, draw_more]))
    expected = [bound(0, SampleContext(index, seed=0)) for index in range(40)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda index: bound(0, SampleContext(index, seed=0)), range(40)))
    finally:
        sys.setswitchinterval(interval)
    assert found == expected


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_while_a_thread_transforms_leaves_no_lock_behind() -> None:
    inside, done = threading.Event(), threading.Event()

    def slow(value: Any) -> None:
        inside.set()
        done.wait(60)

    thread = threading.Thread(target=apply, args=(slow, 0, SampleContext(0, seed=0)))
    thread.start()
    assert inside.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # kills a child that waits for the lock
        good = len(apply(draw_all, 0, SampleContext(1, seed=0))) == 3
        os._exit(0 if good else 1)
    status = os.waitpid(child, 0)[1]
    done.set()
    thread.join()
    assert status == 0
