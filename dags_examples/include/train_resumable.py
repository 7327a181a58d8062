"""Fit a line to points by gradient descent, one share of the points on each rank, and go on after a failure.

Each rank writes its part of a checkpoint after every `--every` steps, and begins at the newest checkpoint of the gang.
The checkpoints are in the folder that $GANG_CHECKPOINT_DIR names, also without a gang:

    GANG_CHECKPOINT_DIR=/tmp/checkpoints python train_resumable.py --steps 100
"""

import argparse
import json
import os
import random
import time
from pathlib import Path

from gangjobs_rank import checkpoints, progress

POINTS, RATE = 200, 0.5
SLOPE, OFFSET = 3.0, -1.0


def load_share(rank: int) -> list[tuple[float, float]]:
    """Return the points of one rank."""
    draw = random.Random(rank)
    return [(x, SLOPE * x + OFFSET + draw.gauss(0, 0.1)) for x in (draw.uniform(-1, 1) for _ in range(POINTS))]


def improve(points: list[tuple[float, float]], slope: float, offset: float) -> tuple[float, float, float]:
    """Return the line after one step, and the loss before it."""
    errors = [(x, slope * x + offset - y) for x, y in points]
    loss = sum(error * error for _, error in errors) / len(points)
    slope -= RATE * sum(x * error for x, error in errors) / len(points)
    offset -= RATE * sum(error for _, error in errors) / len(points)
    return slope, offset, loss


def train(rank: int, steps: int, every: int, pause_s: float) -> dict[str, float]:
    """Go on from the newest checkpoint, and return the line."""
    points, state = load_share(rank), {"step": 0, "slope": 0.0, "offset": 0.0}
    newest = checkpoints().newest()
    if newest is not None:
        state = json.loads((newest.folder / "state.json").read_text())
    print(f"begins at step {state['step']}", flush=True)
    for step in range(state["step"] + 1, steps + 1):
        time.sleep(pause_s)
        slope, offset, loss = improve(points, state["slope"], state["offset"])
        state = {"step": step, "slope": slope, "offset": offset}
        progress(step=step, total=steps, metrics={"loss": loss})
        if step % every == 0 or step == steps:
            with checkpoints().write(step) as folder:
                (folder / "state.json").write_text(json.dumps(state))
            print(f"step {step}/{steps}  loss {loss:.6f}", flush=True)
    return {"slope": state["slope"], "offset": state["offset"]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.05, help="seconds before each step")
    options = parser.parse_args()
    line = train(int(os.environ.get("RANK", "0")), options.steps, options.every, options.pause)
    Path(os.environ.get("GANG_RESULT_PATH", os.devnull)).write_text(json.dumps(line))


if __name__ == "__main__":
    main()
