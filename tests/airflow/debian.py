"""Programs that a tier of the tests needs, from Debian's packages. Standard library alone: any Python can run this."""

from __future__ import annotations

import os
import shutil
import subprocess


def install(what: str, *packages: str) -> None:
    """Install Debian's, if this is a Debian and we may."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]
    print(f"installing {what}: {' '.join(command)}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-q"], env=environment, stdout=subprocess.DEVNULL, check=False)
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
