"""Install programs that a tier of the tests needs, from Debian's packages.

The module uses only the standard library, so that any Python can run it.
"""

from __future__ import annotations

import os
import shutil
import subprocess


def install(what: str, *packages: str) -> None:
    """Install packages, if this machine has apt-get and the process is root."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]
    print(f"installing {what}: {' '.join(command)}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-q"], env=environment, stdout=subprocess.DEVNULL, check=False)
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
