"""What strangers ask: the page that answers is among the first three that the search of the site finds.

The test uses the site that `make docs` has built, if no page is newer, and builds it otherwise.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="the documentation is built with requirements.lock only")

from tests.site_search import SiteSearch

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "docs"
QUESTIONS = {
    "retry policy": "retries",
    "notifications": "retries",
    "on_failure_callback": "retries",
    "helm": "installation",
    "dockerfile": "installation",
    "remote logging": "installation",
    "network policy": "installation",
    "uninstall": "installation",
    "KubernetesExecutor": "installation",
    "rbac": "installation",
    "single pod": "one-pod",
    "KubernetesPodOperator": "migrating",
    "loop": "ranks",
    "DistributedDataParallel": "ranks",
    "resume": "restarts",
    "checkpoint": "restarts",
    "out of memory": "troubleshooting",
    "stuck": "oncall",
    "mpirun": "mpi",
    "metrics": "operations",
    "quota": "kueue",
    "EKS": "clusters",
    "preemption": "concepts",
    "ImagePullBackOff": "troubleshooting",
    "pod pending forever": "troubleshooting",
    "insufficient nvidia.com/gpu": "troubleshooting",
    "OOMKilled": "troubleshooting",
    "exit code 137": "troubleshooting",
    "xcom too large": "troubleshooting",
    "kubernetes connection in triggerer": "installation",
    "airflow task stuck deferred": "oncall",
    "rerun failed rank only": "restarts",
    "spot instance preempted": "concepts",
    "torchrun rendezvous": "concepts",
    "helm chart triggerer role": "installation",
    "pod stuck terminating": "oncall",
    "multi-node training": "index",
    "share a device": "manifests",
    "cancel a gang": "cli",
}


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> SiteSearch:
    index = BUILT / "searchindex.js"
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    if index.exists() and index.stat().st_mtime > max(page.stat().st_mtime for page in pages):
        return SiteSearch(BUILT)
    site, home = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("airflow")
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--quiet", str(ROOT / "docs"), str(site)]
    subprocess.run(command, env={**os.environ, "AIRFLOW_HOME": str(home)}, cwd=ROOT, check=True)
    return SiteSearch(site)


@pytest.mark.slow
@pytest.mark.parametrize(("query", "page"), QUESTIONS.items())
def test_page_is_among_the_first_three(query: str, page: str, search: SiteSearch) -> None:
    assert page in search.pages(query)[:3]
