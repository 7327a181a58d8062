"""Train a classifier of handwritten digits on a gang of four ranks.

The task `prepare` creates the data set, and `train` runs include/train_digits.py on
every rank of a gang. `report` compares the gang with a single process of the same
program and plots the loss.

The image needs Python and numpy. The default of the parameter `image` has no numpy. It
suits the sandbox, which ignores images and runs the Python of this machine. On a
cluster, set `image` to an image with numpy.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import dag, task

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

INCLUDE = Path(__file__).parent / "include"
DATA = "digits.npz.b64"


@dag(
    schedule=None,
    catchup=False,
    tags=["gangjobs"],
    params={"epochs": 150, "image": "python:3.12-slim"},
    doc_md=__doc__,
)
def train_digits_gang() -> None:
    @task(show_return_value_in_logs=False)
    def prepare() -> str:
        """Return the digits as text, because an XCom and a file of a gang hold text. A
        quarter is test data.
        """
        import base64
        import io

        import numpy as np
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        pixels, labels = load_digits(return_X_y=True)
        parts = train_test_split(
            pixels.astype("uint8"),
            labels.astype("uint8"),
            test_size=0.25,
            stratify=labels,
            random_state=0,
        )
        names = ("train_pixels", "test_pixels", "train_labels", "test_labels")
        arrays = io.BytesIO()
        np.savez_compressed(arrays, **dict(zip(names, parts, strict=True)))
        return base64.encodebytes(arrays.getvalue()).decode()

    @task
    def report(digits: str, ranks: list[dict], epochs: int) -> dict:
        """Print a table of the ranks, plot the loss, and return both accuracies and the
        path of the plot.
        """
        first, alone = ranks[0], _train_alone(digits, epochs)
        print(
            f"{'rank':>4}  {'samples':>7}  {'steps':>6}  "
            f"{'step median':>11}  {'step p90':>9}"
        )
        for rank in ranks:
            step = rank["step_ms"]
            print(
                f"{rank['rank']:>4}  {rank['shard_samples']:>7}  {rank['steps']:>6}"
                f"  {step['median']:>8.2f} ms  {step['p90']:>6.2f} ms"
            )
        print(
            f"accuracy on held-out digits: gang {first['accuracy']:.4f}, "
            f"one process {alone['accuracy']:.4f}"
        )
        plot = _plot(
            {f"gang of {len(ranks)}": first["loss"], "one process": alone["loss"]},
            epochs,
        )
        return {
            "accuracy": first["accuracy"],
            "reference": alone["accuracy"],
            "plot": plot,
            "ranks": len(ranks),
        }

    digits = prepare()
    train = GangJobOperator(
        task_id="train",
        image="{{ params.image }}",
        command=[
            "python",
            "/gang/files/train_digits.py",
            "--epochs",
            "{{ params.epochs }}",
        ],
        workers=4,
        resources={"cpu": "500m", "memory": "256Mi"},
        files={
            # The path is relative to this file.
            "train_digits.py": "include/train_digits.py",
            "allreduce.py": "include/allreduce.py",
            DATA: digits,
        },
        results="all",
        queue_timeout=timedelta(minutes=30),
        assemble_timeout=timedelta(minutes=5),
        run_timeout=timedelta(minutes=10),
        # After a preemption or the loss of a node the gang runs again without a retry.
        max_disruptions=3,
    )
    report(digits, train.output, "{{ params.epochs }}")


def _train_alone(digits: str, epochs: int) -> dict:
    """Run the program of the gang as a single process and return its result."""
    import json
    import os
    import subprocess
    import sys
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        data, result = Path(folder, DATA), Path(folder, "result.json")
        data.write_text(digits)
        subprocess.run(
            [
                sys.executable,
                INCLUDE / "train_digits.py",
                f"--data={data}",
                f"--epochs={epochs}",
            ],
            env=os.environ
            | {"RANK": "0", "WORLD_SIZE": "1", "GANG_RESULT_PATH": str(result)},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return json.loads(result.read_text())


def _plot(curves: dict[str, list[float]], epochs: int) -> str:
    """Plot the loss over the epochs, and save the plot as PNG in $GANGJOBS_OUTPUT_DIR
    or the temporary directory.
    """
    import os
    import tempfile

    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for (label, losses), style in zip(curves.items(), ("-", "--"), strict=True):
        stride = int(epochs) / len(losses)
        axes.plot(
            [1 + stride * point for point in range(len(losses))],
            losses,
            style,
            label=label,
        )
    axes.set(
        yscale="log",
        xlabel="epoch",
        ylabel="training loss",
        title="Digits: data-parallel SGD",
    )
    axes.legend()
    folder = Path(os.environ.get("GANGJOBS_OUTPUT_DIR") or tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "train_digits_loss.png"
    figure.savefig(path, dpi=120)
    return str(path)


train_digits_gang()
