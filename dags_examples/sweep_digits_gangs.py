"""Sweep a parameter over mapped gangs: each gang cross-validates one value, and each
rank scores one fold.

The data are the handwritten digits of scikit-learn, which the image needs. Every gang
publishes its scores as an asset event, with the results of its ranks as extra, and
`choose_digits_gangs` runs when scores are published. `describe` is mapped over the
results of the gangs, one task for each of them.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import Asset, dag, task

from airflow_provider_gangjobs.decorators.gang_job import Gang

SCORES = Asset("digits_scores")
STRENGTHS = [0.0001, 0.01, 1.0]
"""Values of the inverse regularization strength of a logistic regression."""


def publish(context, result) -> None:
    """Add what the ranks have returned to the asset event of this task."""
    context["outlet_events"][SCORES].extra = {"folds": result}


@dag(
    schedule=None,
    catchup=False,
    tags=["gangjobs"],
    params={"image": "quay.io/jupyter/scipy-notebook:latest"},
    doc_md=__doc__,
)
def sweep_digits_gangs() -> None:
    @task.gang_job(
        image="{{ params.image }}",
        workers=4,
        resources={"cpu": "250m", "memory": "512Mi"},
        outlets=[SCORES],
        post_execute=publish,
        assemble_timeout=timedelta(minutes=30),
        run_timeout=timedelta(minutes=20),
    )
    def score(strength: float, *, gang: Gang) -> dict:
        """Return the accuracy on this rank's fold of a model that was fitted on the
        other folds.
        """
        from sklearn.datasets import load_digits
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import StratifiedKFold

        pixels, labels = load_digits(return_X_y=True)
        folds = StratifiedKFold(gang.world_size, shuffle=True, random_state=0).split(
            pixels, labels
        )
        learn, test = list(folds)[gang.rank]
        model = LogisticRegression(C=strength, max_iter=200).fit(
            pixels[learn] / 16, labels[learn]
        )
        accuracy = float(model.score(pixels[test] / 16, labels[test]))
        print(f"strength {strength:g}, fold {gang.rank}: {accuracy:.4f}")
        return {"strength": strength, "fold": gang.rank, "accuracy": accuracy}

    @task
    def describe(folds: list[dict]) -> str:
        """Return one line about one gang."""
        accuracies = [fold["accuracy"] for fold in folds]
        strength, low, high = folds[0]["strength"], min(accuracies), max(accuracies)
        return f"strength {strength:g}: {low:.3f} to {high:.3f}"

    describe.expand(folds=score.expand(strength=STRENGTHS))


@dag(schedule=[SCORES], catchup=False, tags=["gangjobs"], doc_md=__doc__)
def choose_digits_gangs() -> None:
    @task(inlets=[SCORES])
    def choose(*, inlet_events) -> float:
        """Return the best value of the latest sweep."""
        sweep = [
            event.extra["folds"] for event in inlet_events[SCORES][-len(STRENGTHS) :]
        ]
        means = {
            folds[0]["strength"]: sum(fold["accuracy"] for fold in folds) / len(folds)
            for folds in sweep
        }
        print(f"mean accuracies: {means}")
        return max(means, key=means.__getitem__)

    choose()


sweep_digits_gangs()
choose_digits_gangs()
