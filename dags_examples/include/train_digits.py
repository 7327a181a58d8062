"""Train a classifier of handwritten digits with synchronous data-parallel SGD. The program uses only numpy.

Every rank has its share of the samples (index % WORLD_SIZE == RANK) and a copy of the model. In each step all ranks use
the same global batch. Each rank computes the gradient over its own samples of the batch, and every copy of the model is
updated by the sum over all ranks. The sum does not depend on the distribution of the samples, so any number of ranks
trains the same model, up to rounding.

    RANK=0 WORLD_SIZE=1 python train_digits.py --data digits.npz.b64

The program prints a line per epoch on rank 0 and writes a JSON result to the file that $GANG_RESULT_PATH names.
"""

import argparse
import base64
import io
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

# One thread per rank: the ranks run in parallel and share the cores of a laptop.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from allreduce import Gang, GangError

HIDDEN, CLASSES = 32, 10
LOSS_POINTS_MAX = 100  # The kubelet limits a result to 4 KiB.


@dataclass(frozen=True)
class Samples:
    """One rank's share of a data set of `total` samples. Row i is sample rank + i * world_size."""

    pixels: np.ndarray
    labels: np.ndarray
    total: int

    @classmethod
    def share(cls, pixels: np.ndarray, labels: np.ndarray, gang: Gang) -> "Samples":
        mine = slice(gang.rank, None, gang.world_size)
        return cls(pixels[mine] / 16.0, labels[mine].astype(int), len(labels))


class Network:
    """64 pixels -> HIDDEN tanh units -> CLASSES. The parameters are one flat vector, which one message can carry."""

    def __init__(self, inputs: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        shapes = [(inputs, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,)]
        self.parameters = np.concatenate(
            [rng.normal(0, shape[0] ** -0.5, shape).ravel() if len(shape) == 2 else np.zeros(shape) for shape in shapes]
        )
        edges = np.cumsum([0] + [int(np.prod(shape)) for shape in shapes])
        self._views = [
            self.parameters[start:end].reshape(shape)
            for start, end, shape in zip(edges[:-1], edges[1:], shapes, strict=True)
        ]

    def loss_and_gradient(self, pixels: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return sums over the given samples in one vector: [loss, gradient...]."""
        _, _, w2, _ = self._views
        hidden, logits = self._forward(pixels)
        scaled = logits - logits.max(axis=1, keepdims=True)
        log_p = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
        rows = np.arange(len(labels))
        d_logits = np.exp(log_p)
        d_logits[rows, labels] -= 1
        d_hidden = (d_logits @ w2.T) * (1 - hidden**2)
        gradient = [pixels.T @ d_hidden, d_hidden.sum(axis=0), hidden.T @ d_logits, d_logits.sum(axis=0)]
        return np.concatenate([[-log_p[rows, labels].sum()], *(part.ravel() for part in gradient)])

    def count_correct(self, samples: Samples) -> int:
        return int((self._forward(samples.pixels)[1].argmax(axis=1) == samples.labels).sum())

    def _forward(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        w1, b1, w2, b2 = self._views
        hidden = np.tanh(pixels @ w1 + b1)
        return hidden, hidden @ w2 + b2


def read_digits(path: Path) -> dict[str, np.ndarray]:
    """Read the data set: an .npz file in base64, because the prepare step returns text."""
    with np.load(io.BytesIO(base64.b64decode(path.read_text()))) as arrays:
        return dict(arrays)


def train(gang: Gang, digits: dict[str, np.ndarray], options: argparse.Namespace) -> dict[str, object]:
    """Train with the other ranks of the gang and return this rank's result."""
    mine = Samples.share(digits["train_pixels"], digits["train_labels"], gang)
    held_out = Samples.share(digits["test_pixels"], digits["test_labels"], gang)
    network = Network(mine.pixels.shape[1], options.seed)
    order = np.random.default_rng(options.seed)  # The same seed gives every rank the same global batches.
    velocity = np.zeros_like(network.parameters)
    losses, step_s, accuracy = [], [], 0.0
    for epoch in range(1, options.epochs + 1):
        loss = 0.0
        for batch in np.array_split(order.permutation(mine.total), -(-mine.total // options.batch)):
            started = time.perf_counter()
            rows = batch[batch % gang.world_size == gang.rank] // gang.world_size
            sums = gang.sum(network.loss_and_gradient(mine.pixels[rows], mine.labels[rows]))
            velocity = options.momentum * velocity - options.rate * sums[1:] / len(batch)
            network.parameters += velocity
            loss += float(sums[0])
            step_s.append(time.perf_counter() - started)
        accuracy = float(gang.sum(np.array([float(network.count_correct(held_out))]))[0]) / held_out.total
        losses.append(loss / mine.total)
        if gang.rank == 0:
            print(
                f"epoch {epoch}/{options.epochs}  loss {losses[-1]:.4f}  held-out accuracy {accuracy:.4f}", flush=True
            )
    return {
        "rank": gang.rank,
        "world_size": gang.world_size,
        "accuracy": round(accuracy, 4),
        "shard_samples": len(mine.labels),
        "steps": len(step_s),
        "step_ms": {"median": _milliseconds(step_s, 50), "p90": _milliseconds(step_s, 90)},
        "loss": _downsample(losses) if gang.rank == 0 else [],
    }


def _milliseconds(seconds: list[float], percentile: int) -> float:
    return round(float(np.percentile(seconds, percentile)) * 1000, 3)


def _downsample(curve: list[float]) -> list[float]:
    stride = -(-len(curve) // LOSS_POINTS_MAX)
    return [float(f"{loss:.3g}") for loss in curve[::stride]]


def main() -> int:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description="Train a digit classifier on the ranks of a gang.")
    parser.add_argument("--data", type=Path, default=here / "digits.npz.b64", help="data set made by the prepare step")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch", type=int, default=96, help="samples per step, over all ranks")
    parser.add_argument("--rate", type=float, default=0.2)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        with Gang.from_environment() as gang:
            result = train(gang, read_digits(options.data), options)
    except GangError as error:
        print(f"the training stopped, because every step needs all ranks: {error}", file=sys.stderr, flush=True)
        return 1
    text = json.dumps(result, separators=(",", ":"))
    if path := os.environ.get("GANG_RESULT_PATH"):
        Path(path).write_text(text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
