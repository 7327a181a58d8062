"""The documentation names only things that exist, and the public parts of the code are documented."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
import tomllib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import BaseOperator, BaseSensorOperator
from kubernetes.client import models as k8s
from msgspec import Struct

from airflow_provider_gangjobs import exceptions
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.spec import GangSpec, Rendezvous
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.kube import well_known
from airflow_provider_gangjobs.operators.delete_gang import GangJobDeleteOperator
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator
from airflow_provider_gangjobs.parameters.unknown_parameters import OWN_NAMES
from airflow_provider_gangjobs.sensors.gang_job import GangJobSensor
from gangjobs_sandbox.cluster import SandboxConfig
from tests.guarantees.checkers import Guarantee

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")


PARAMETERS = re.compile(r"```\{parameters\} ([\w.]+)\.(\w+)\n(?::section: (.*?)\n)?(.*?)```", re.DOTALL)
"""The lists of parameters that `docs/_extensions/parameter_list.py` makes from docstrings."""
WORDS_MAX = 38_000
COLUMNS_MAX = 88
"""What a page of the site shows without a bar to scroll, 1400 pixels wide."""
MENU_MAX = 20
ALL_PAGES = [*PAGES, ROOT / "gangjobs_sandbox" / "README.md"]
BLOCK = re.compile(r"^(?P<in> *)```(?P<kind>[^\n]*)\n(?P<text>.*?)^(?P=in)```$", flags=re.DOTALL | re.MULTILINE)


def listed_parameters(page: Path) -> list[tuple[str, str]]:
    """The classes and parameters that a page lists, each as the name of the class and the name of the parameter."""
    from docs._extensions.parameter_list import listed_parameters as listed  # Sphinx is not installed in each lane

    return [
        (name, parameter)
        for module, name, section, lines in PARAMETERS.findall(page.read_text())
        for parameter in listed(getattr(import_module(module), name), section or None, lines.splitlines())
    ]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings of a page, and those of parameters."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    of_headings = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return of_headings | {f"{kind.lower()}-{parameter}" for kind, parameter in listed_parameters(page)}


def test_documentation_is_short_enough_to_be_read() -> None:
    assert sum(len(page.read_text().split()) for page in ALL_PAGES) <= WORDS_MAX


def code_of(page: Path) -> Iterator[str]:
    """The blocks of code of a page, also those that are files."""
    for block in BLOCK.finditer(page.read_text()):
        directive, _, name = block["kind"].strip().partition(" ")
        if directive == "{literalinclude}":
            yield (page.parent / name).read_text()
        elif not directive.startswith("{"):
            yield block["text"]


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_code_scrolls(page: Path) -> None:
    assert [line for code in code_of(page) for line in code.splitlines() if len(line) > COLUMNS_MAX] == []


def test_code_is_found() -> None:
    assert sum(1 for page in ALL_PAGES for _ in code_of(page)) > 60


def entries_of_the_menu(page: Path) -> list[str]:
    trees = (block["text"] for block in BLOCK.finditer(page.read_text()) if block["kind"] == "{toctree}")
    return [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]


def test_menu_is_short() -> None:
    assert 10 < len(entries_of_the_menu(ROOT / "docs" / "index.md")) <= MENU_MAX


def test_every_page_is_below_the_menu_once() -> None:
    pages = [page for page in PAGES if page.is_relative_to(ROOT / "docs") and page.name != "index.md"]
    below = [ROOT / "docs" / f"{name}.md" for page in ROOT.glob("docs/*.md") for name in entries_of_the_menu(page)]
    assert sorted(page for page in below if page.name != "index.md") == sorted(
        page for page in pages if page.parent.name != "api"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(there), f"{page.name} links to {target}#{anchor}"


@pytest.mark.parametrize("kind", [GangJobOperator, GangJobDeleteOperator, GangJobSensor])
def test_every_parameter_is_in_the_reference_once(kind: type[Any]) -> None:
    listed = [name for owner, name in listed_parameters(ROOT / "docs/reference.md") if owner == kind.__name__]
    described = re.findall(r"^:param (\w+):", inspect.getdoc(kind) or "", flags=re.MULTILINE)
    assert sorted([*listed, "kwargs"]) == sorted(described)


DESIGN = (ROOT / "docs/design.md").read_text()
DECISIONS = DESIGN.split("## Where decisions are")[1]
PACKAGE = ROOT / "airflow_provider_gangjobs"


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([\w/]+(?:/|\.py))`", DECISIONS)) - {f"{PACKAGE.name}/"}))
def test_file_of_a_decision_exists(path: str) -> None:
    assert (PACKAGE / path).exists()


def test_layers_of_the_design_are_those_of_the_import_contract() -> None:
    block = DESIGN.split("## Layers")[1].split("```text\n")[1].split("```")[0]
    drawn = [re.split(r"  +", line)[0].split(" | ") for line in block.splitlines()]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    assert drawn == [[name.rpartition(".")[2] for name in layer.split(" | ")] for layer in layers]


SAMPLES = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL))
]
BASE = set(inspect.signature(BaseOperator.__init__).parameters) | set(
    inspect.signature(BaseSensorOperator.__init__).parameters
)
NAMED: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        GangJobOperator,
        GangJobDeleteOperator,
        GangJobSensor,
        GangSpec,
        Rendezvous,
        SandboxConfig,
        TaskKey,
        GangJobHook,
    )
}


def accepted_by(kind: type[Any]) -> set[str]:
    """The parameters by which a class can be called."""
    if issubclass(kind, Struct):
        return set(kind.__struct_fields__)
    own = {name for each in kind.__mro__ for name in inspect.signature(each.__init__).parameters}
    return own | BASE if issubclass(kind, BaseOperator) else own  # type: ignore[arg-type]


@pytest.mark.parametrize("sample", SAMPLES)
def test_python_sample_names_only_what_exists(sample: str) -> None:
    """The samples that are no files of their own: what they import, and the parameters and methods that they use."""
    tree = ast.parse(sample)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(("airflow", "gangjobs_sandbox")):
            module = import_module(str(node.module))
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
        if not isinstance(node, ast.Call):
            continue
        given = {keyword.arg for keyword in node.keywords if keyword.arg}
        match node.func:
            case ast.Name(id=name) if name in NAMED:
                assert given <= accepted_by(NAMED[name]), name
            case ast.Attribute(value=ast.Name(id="task"), attr="gang_job"):
                assert given <= accepted_by(GangJobOperator) | {"python"}
            case ast.Attribute(value=ast.Name(id="hook"), attr=method):
                assert given <= set(inspect.signature(getattr(GangJobHook, method)).parameters), method


@pytest.mark.parametrize("name", ["report_gang.py", "report_pods.py"])
def test_dag_of_the_migration_guide_is_read(name: str) -> None:
    runpy.run_path(str(ROOT / "docs" / "samples" / name))


def test_samples_are_found() -> None:
    assert len(SAMPLES) >= 10


def test_first_example_of_the_migration_is_read_by_both_providers() -> None:
    from airflow.providers.cncf.kubernetes.operators.job import KubernetesJobOperator

    (block,) = re.findall(r"```text\n(# before .*?)```", (ROOT / "docs/migrating.md").read_text(), flags=re.DOTALL)
    middle = block.index("# after")
    before, after = (
        "\n".join(line[part] for line in block.splitlines()) for part in (slice(middle), slice(middle, None))
    )
    names = {"KubernetesJobOperator": KubernetesJobOperator, "GangJobOperator": GangJobOperator, "k8s": k8s}
    old, new = (eval(program.partition("\n")[2].strip(), dict(names)) for program in (before, after))

    assert (old.image, old.cmds, old.parallelism) == (new.image, new.command, new.workers)
    assert old.container_resources.requests == old.container_resources.limits == new.rank_resources


def columns_of_the_migration_table() -> tuple[set[str], set[str]]:
    """The parameters that the table and the paragraph below it name: the peer's, and ours."""
    text = (ROOT / "docs/migrating.md").read_text().split("## Parameters")[1].split("## Results")[0]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    named = re.compile(r"`(\w+)`")
    same = set(named.findall(text.split("\n\n")[-2]))
    theirs, ours = ({name for row in rows for name in named.findall(row[column])} for column in (1, 2))
    return theirs | same, (ours - {"retries"}) | same  # every operator of Airflow has retries


def test_every_parameter_that_the_migration_names_exists() -> None:
    from airflow.providers.cncf.kubernetes.operators.job import KubernetesJobOperator
    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator

    theirs, ours = columns_of_the_migration_table()
    known = {name for kind in (KubernetesJobOperator, KubernetesPodOperator) for name in parameters(kind)}
    assert len(theirs) > 50
    assert theirs <= known
    assert ours <= parameters(GangJobOperator)


@pytest.mark.parametrize(("theirs", "own"), OWN_NAMES.items())
def test_name_that_an_error_gives_for_a_parameter_is_that_of_the_migration(theirs: str, own: str) -> None:
    text = (ROOT / "docs/migrating.md").read_text()
    (row,) = (line.split("|") for line in text.splitlines() if line.startswith("| `") and f"`{theirs}`" in line)
    assert f"`{own}`" in row[2] + row[3]
    assert theirs not in parameters(GangJobOperator)


@pytest.mark.parametrize("operator", ["job.KubernetesJobOperator", "pod.KubernetesPodOperator"])
def test_every_parameter_of_the_installed_kubernetes_operators_is_in_the_migration(operator: str) -> None:
    module, _, name = operator.partition(".")
    kind = getattr(import_module(f"airflow.providers.cncf.kubernetes.operators.{module}"), name)
    text = (ROOT / "docs/migrating.md").read_text().split("## Parameters")[1].split("## Results")[0]

    assert parameters(kind) - {"self", "kwargs", "args"} <= set(re.findall(r"`(\w+)`", text))


def parameters(kind: type) -> set[str]:
    return set(inspect.signature(kind.__init__).parameters)


ERRORS = re.findall(r"[├└]── (\w+)", exceptions.__doc__ or "")


@pytest.mark.parametrize("error", [name for name in ERRORS if name != "GangEndError"])
def test_every_error_has_its_troubleshooting(error: str) -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "docs/troubleshooting.md").read_text(), flags=re.MULTILINE)
    assert error in {name.strip() for heading in headings for name in heading.split(",")}


@pytest.mark.parametrize(
    "name", [value for key, value in vars(well_known).items() if key.startswith(("LABEL_", "FINALIZER_"))]
)
def test_every_label_and_finalizer_is_in_the_reference(name: str) -> None:
    if name.startswith(well_known.PREFIX):
        assert name in (ROOT / "docs/reference.md").read_text()


NAMED_TESTS = sorted(set(re.findall(r"`(test_[a-z0-9_]+)`", (ROOT / "docs/reliability.md").read_text())))
DEFINED_TESTS = frozenset(
    name
    for file in ROOT.glob("tests/**/test_*.py")
    for name in re.findall(r"^(?:async )?def (test_\w+)\(", file.read_text(), flags=re.MULTILINE)
)


@pytest.mark.parametrize("name", NAMED_TESTS)
def test_every_test_that_the_page_on_reliability_names_exists(name: str) -> None:
    assert name in DEFINED_TESTS


def test_page_on_reliability_has_all_points_and_guarantees() -> None:
    page = (ROOT / "docs/reliability.md").read_text()
    points = [int(number) for number in re.findall(r"^### (\d+)\. ", page, flags=re.MULTILINE)]
    assert points == list(range(1, 20))
    assert all(f"| `{guarantee}` |" in page for guarantee in Guarantee)
