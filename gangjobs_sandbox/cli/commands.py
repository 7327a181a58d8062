"""`gangjobs-sandbox`: runs an embedded cluster in the foreground, or for the duration of one command.

`up` shows what happens in the cluster until Ctrl-C or SIGTERM. `run` passes the cluster to a command in KUBECONFIG and
as an Airflow connection, and returns the exit code of the command. Where the provider is installed as well, its command
line has the same actions as `gangjobs sandbox`. What is heavy is imported by the action that needs it, so that `--help`
is fast.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gangjobs_sandbox import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gangjobs_sandbox.cluster import SandboxConfig

__all__ = ["configure", "main"]

RELEASES = ("1.36", "1.37", "none")
PORT_MAX = 65535


class CommandError(Exception):
    """The command fails. The message says why, and what to do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run an action and return its exit code: 1 after a CommandError, 2 for invalid arguments, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="gangjobs-sandbox", description="Run a small Kubernetes control plane on this machine."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    configure(parser)
    options = parser.parse_args(argv)
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        return 130


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments, and set `run`: a function from the parsed arguments to the exit code."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    upper = actions.add_parser("up", help="start a cluster and show what happens in it until Ctrl-C")
    upper.set_defaults(run=partial(_run_action, up))
    runner = actions.add_parser(
        "run",
        help="start a cluster, run a command with it, and stop it",
        description="CMD finds the cluster in KUBECONFIG and AIRFLOW_CONN_KUBERNETES_DEFAULT.",
    )
    for subparser in (upper, runner):
        _add_cluster_options(subparser)
    runner.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command to run")
    runner.set_defaults(run=partial(_run_action, run))
    parser.set_defaults(program=parser.prog)


def _run_action(action: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run the action, and print a `CommandError` without a traceback. Returns the exit code."""
    try:
        return action(options)
    except CommandError as error:
        print(f"{options.program.split()[0]}: {error}", file=sys.stderr)
        return 1


def up(options: argparse.Namespace) -> int:
    """Run a cluster until SIGINT or SIGTERM. Returns the exit code 0."""
    import asyncio

    from gangjobs_sandbox.cli.foreground import run_in_foreground

    with _sandbox_errors_as_command_errors():
        asyncio.run(run_in_foreground(_config(options)))
    return 0


def run(options: argparse.Namespace) -> int:
    """Run a command with its own cluster. Returns the exit code of the command."""
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise CommandError(f"no command is given. For example: {options.program} run -- kubectl get nodes")
    from gangjobs_sandbox.thread import running

    with _sandbox_errors_as_command_errors(), running(_config(options)) as sandbox:
        return _run_command(command, os.environ | variables(sandbox.kubeconfig_path))


def variables(kubeconfig: Path) -> dict[str, str]:
    """Return the environment variables by which kubectl, client libraries and Airflow find the cluster."""
    connection = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(kubeconfig)}}
    return {"KUBECONFIG": str(kubeconfig), "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps(connection)}


def _run_command(command: list[str], env: Mapping[str, str]) -> int:
    """Run the command in the foreground, under a supervisor. Signals to this process are passed to the command."""
    from gangjobs_sandbox import supervise

    program = supervise.start(command, env=env, own_session=False)
    # A terminal sends SIGINT to the command as well, so this process leaves SIGINT to the command.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: program.stop())
    return program.wait()


def _add_cluster_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=_count, default=2, metavar="N", help="number of nodes (default: 2)")
    parser.add_argument("--cpu", default="4", metavar="C", help="cores of each node (default: 4)")
    parser.add_argument("--memory", default="8Gi", metavar="M", help="memory of each node (default: 8Gi)")
    parser.add_argument("--gpu", type=int, default=0, metavar="G", help="nvidia.com/gpu of each node (default: 0)")
    parser.add_argument(
        "--kubernetes",
        choices=RELEASES,
        default="1.37",
        help="release whose Workload API is served; none: without it (default: 1.37)",
    )
    parser.add_argument(
        "--workload-with-job",
        action="store_true",
        help="enable this feature gate: the Job controller creates Workloads and PodGroups (1.36 and 1.37)",
    )
    parser.add_argument("--port", type=_port, default=0, metavar="P", help="port of the API (default: a free one)")
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="keep objects, logs and kubeconfig in this folder across restarts (default: a temporary folder)",
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="file with the bearer token to accept (default: a random token)"
    )


def _config(options: argparse.Namespace) -> SandboxConfig:
    from gangjobs_sandbox.cluster import SandboxConfig

    token = None
    if options.token_file:
        try:
            token = options.token_file.read_text().strip()
        except OSError as error:
            raise CommandError(f"--token-file {options.token_file}: {error.strerror}") from error
    return SandboxConfig(
        nodes=options.nodes,
        cpu=options.cpu,
        memory=options.memory,
        gpu=options.gpu,
        kubernetes=options.kubernetes,
        port=options.port,
        data_dir=options.data_dir,
        token=token,
        workload_with_job=options.workload_with_job,
    )


@contextmanager
def _sandbox_errors_as_command_errors() -> Iterator[None]:
    """Raise a `SandboxError` as a `CommandError`, which `_run_action` prints."""
    import logging

    from gangjobs_sandbox.cluster import SandboxError

    # uvicorn reports the watches that are still open at the end, which is normal here.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    try:
        yield
    except SandboxError as error:
        raise CommandError(str(error)) from error


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return number


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= PORT_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not a port: 0 to {PORT_MAX}")
    return number


if __name__ == "__main__":
    sys.exit(main())
