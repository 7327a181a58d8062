"""Manifests of Jobs, and arbitrary values, for the tests of validation."""

from hypothesis import strategies as st


def job(template=None, metadata=None, **spec):
    pod = {"containers": [{"name": "main", "image": "a"}]}
    template = {"spec": pod} if template is None else template
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata or {},
        "spec": {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": template, **spec},
    }


def container(**fields):
    return job({"spec": {"containers": [{"name": "main", "image": "a", **fields}]}})


def env(name, value):
    return container(env=[{"name": name, "value": value}])


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=8,
)
PARTS = st.sampled_from(["spec", "metadata", "template", "containers", "env", "name", "volumes", "image", "labels"])
NESTED = st.recursive(
    ANYTHING,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(PARTS | st.integers(0, 1), inner, max_size=3),
    max_leaves=10,
)
