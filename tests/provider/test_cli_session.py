"""The recorded session of the page on the command line is what the commands print."""

from __future__ import annotations

import getpass

from gangjobs_sandbox.cluster import SandboxConfig
from gangjobs_sandbox.thread import running
from scripts.cli_session import RECORDED, session, without_times


def test_recorded_session_is_what_the_commands_print() -> None:
    with running(SandboxConfig(nodes=2)) as sandbox:
        shown = session(sandbox)

    assert without_times(shown).splitlines() == without_times(RECORDED.read_text()).splitlines()
    assert getpass.getuser() not in RECORDED.read_text()
