"""Fit a small network to a curve with PyTorch, data-parallel over all processes of a gang.

Every process has its share of the points and a copy of the network. DistributedDataParallel averages the gradients of
all processes in each step, so all copies stay equal. The process group uses NCCL on GPUs and gloo on CPUs.

    torchrun --standalone train_torch.py --steps 200

With checkpoints of its task, the program goes on from the newest one after a failure. All copies are equal, so the
first process writes it for all.

The first process prints the loss and writes a JSON result to the file that $GANG_RESULT_PATH names. A process that
fails writes its error and the time there, because its peers fail a moment later, without their connection to it.
"""

import argparse
import json
import math
import os
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

POINTS, HIDDEN, PRINTS = 512, 32, 10
KEEPS_PLACE = "GANG_CHECKPOINT_DIR" in os.environ
if KEEPS_PLACE:
    from gangjobs_rank import checkpoints, progress


def load_share(rank: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the points of one process: every `world_size`-th point of the curve."""
    x = torch.linspace(-1, 1, POINTS)[rank::world_size].unsqueeze(1)
    return x, torch.sin(math.pi * x)


def mean_over_processes(value: float) -> float:
    """Return the mean of the values of all processes."""
    total = torch.tensor([value], dtype=torch.float64)
    if torch.cuda.is_available():
        total = total.cuda()
    distributed.all_reduce(total)
    return float(total.item()) / distributed.get_world_size()


def train(steps: int, rate: float, every: int, pause_s: float) -> dict[str, object]:
    """Train together with the other processes, and return the result."""
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x, y = (part.to(device) for part in load_share(rank, world_size))
    torch.manual_seed(0)  # All copies begin with the same weights.
    network = nn.Sequential(nn.Linear(1, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1)).to(device)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    losses: list[float] = []
    first = 0
    if KEEPS_PLACE and (newest := checkpoints().newest()):
        state = torch.load(newest.folder / "state.pt", map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, losses = newest.step, state["losses"]
    if rank == 0:
        print(f"begins at step {first}", flush=True)
    for step in range(first + 1, steps + 1):
        time.sleep(pause_s)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % max(steps // PRINTS, 1) == 0:
            losses.append(mean_over_processes(loss.item()))
            if rank == 0:
                print(f"step {step}/{steps}  loss {losses[-1]:.6f}", flush=True)
        if KEEPS_PLACE:
            progress(step=step, total=steps)
        if KEEPS_PLACE and rank == 0 and step % every == 0:
            with checkpoints().write(step, ranks=1) as folder:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
                torch.save(state, folder / "state.pt")
    points = int(mean_over_processes(len(x)) * world_size)
    return {"torch": torch.__version__, "processes": world_size, "points": points, "losses": losses}


def run(steps: int, rate: float, every: int, pause_s: float) -> None:
    """Join the process group, train, and write the result."""
    use_cuda = torch.cuda.is_available()
    if use_cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if use_cuda else "gloo")
    result = train(steps, rate, every, pause_s)
    if distributed.get_rank() == 0:
        write_result(result)
    distributed.destroy_process_group()


def write_result(result: dict[str, object]) -> None:
    """Write the result of the rank to the file that $GANG_RESULT_PATH names.

    All processes of a rank share this file.
    """
    Path(os.environ.get("GANG_RESULT_PATH", os.devnull)).write_text(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds before each step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        run(options.steps, options.rate, options.every, options.pause)
    except Exception as error:
        write_result({"error": f"{type(error).__name__}: {error}", "at": time.time()})
        raise


if __name__ == "__main__":
    main()
