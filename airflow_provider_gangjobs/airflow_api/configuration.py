"""Airflow's configuration, `airflow.cfg` and the environment, as the running Airflow offers it to providers.

The id of this Airflow installation, which tells its gangs from those of another Airflow in the same namespace.

All workers must compute the same id in each try, without the database. Otherwise a retry would not find the gang of the
previous try. The id is computed from the URL by which users or workers reach Airflow: the URL belongs to one Airflow,
every process may know it, and it changes rarely. The keys of the configuration (`fernet_key`, `jwt_secret`) are
unsuitable: they are rotated, Airflow generates them again in each process if they are not set, and a worker needs none
of them.
"""

from __future__ import annotations

import configparser
import ipaddress
import os
from typing import Final
from urllib.parse import urlsplit

from airflow_provider_gangjobs.gang.identity import digest_of, slug_of
from airflow_provider_gangjobs.kube.links import LinkTemplate, parse_links
from airflow_provider_gangjobs.kube.names import problem_with_label_value

__all__ = [
    "conf",
    "configured_links",
    "ends_from_trigger",
    "has_task_labels",
    "has_tracing",
    "installation_id",
    "starts_from_trigger",
]


try:
    from airflow.sdk import conf
except ImportError:  # Airflow 3.1
    from airflow.configuration import conf  # type: ignore[assignment]


OPERATORS_SECTION: Final = "operators"
DEFERRABLE_OPTION: Final = "default_deferrable"
DEFERRABLE_VARIABLE: Final = "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE"
# Users do not set these options: Airflow 3 reads them only to fill the `resources` of BaseOperator.
GENERATED_OPTIONS: Final = ("default_cpus", "default_ram", "default_disk", "default_gpus")


def default_deferrable(config: configparser.ConfigParser = conf) -> bool:
    """Return Airflow's `[operators] default_deferrable` if a user has set the option, else `True`.

    On first use, Airflow writes an `airflow.cfg` that contains every option with its default; the default of this
    option is false. Such a generated value is not a choice of the user. The presence of the other generated options
    shows that Airflow wrote the file.
    """
    is_generated = all(_in_file(config, option) for option in GENERATED_OPTIONS)
    is_set = DEFERRABLE_VARIABLE in os.environ or (_in_file(config, DEFERRABLE_OPTION) and not is_generated)
    return bool(config.getboolean(OPERATORS_SECTION, DEFERRABLE_OPTION)) if is_set else True


def _in_file(config: configparser.ConfigParser, option: str) -> bool:
    # Airflow's own `has_option` also finds the defaults.
    return configparser.ConfigParser.has_option(config, OPERATORS_SECTION, option)


SECTION: Final = "gangjobs"
URL_OPTIONS: Final = (("api", "base_url"), ("core", "execution_api_server_url"))
"""The options from which the id is derived, in the order in which they are tried."""
EXECUTION_PATH: Final = "/execution"
DIGEST_CHARACTERS: Final = 10
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def installation_id(config: configparser.ConfigParser = conf) -> str:
    """Return the id of this installation, a label value. Return an empty text if the installation has no id.

    Raises:
        ValueError: `[gangjobs] installation_id` is not a valid label value.
    """
    chosen = str(config.get(SECTION, "installation_id", fallback="") or "").strip()
    if chosen:
        if problem := problem_with_label_value(chosen):
            raise ValueError(
                f"[gangjobs] installation_id {chosen!r} {problem}. Correct it in the configuration of Airflow"
            )
        return chosen
    urls = (str(config.get(section, option, fallback="") or "") for section, option in URL_OPTIONS)
    return next((derived for derived in map(id_of_url, urls) if derived), "")


def has_task_labels() -> bool:
    """Return whether Jobs and pods get the labels of their task, which is the default."""
    return bool(conf.getboolean(SECTION, "task_labels", fallback=True))


def starts_from_trigger() -> bool:
    """Return whether tasks that do not say it start their gangs in the triggerer if they can. The default is false."""
    return bool(conf.getboolean(SECTION, "start_from_trigger", fallback=False))


def ends_from_trigger() -> bool:
    """Return whether tasks that do not say it end in the triggerer if they can, which is the default."""
    return bool(conf.getboolean(SECTION, "end_from_trigger", fallback=True))


def has_tracing() -> bool:
    """Return whether Airflow sends a trace of each task."""
    return bool(conf.getboolean("traces", "otel_on", fallback=False))


def configured_links() -> tuple[LinkTemplate, ...]:
    """Return the links of the gangs of all connections.

    Raises:
        ValueError: `[gangjobs] links` cannot be read.
    """
    return parse_links(str(conf.get(SECTION, "links", fallback="") or ""))


def id_of_url(url: str) -> str:
    """Return the id that is derived from a URL, such as `airflow-example-com-k3oeyqz65w`.

    Host, port and path count. The scheme does not: many installations change from `http` to `https`. The id has no
    credential of the URL. A URL without a host, or with the local host, which every machine has, gives an empty text.
    """
    parts = urlsplit(url.strip())
    host = (parts.hostname or "").rstrip(".")
    if not host or _is_local(host):
        return ""
    try:
        port = None if parts.port == _DEFAULT_PORTS.get(parts.scheme) else parts.port
    except ValueError:  # not a number
        return ""
    path = parts.path.rstrip("/").removesuffix(EXECUTION_PATH).rstrip("/")
    digest = digest_of("installation", host, port or "", path)[:DIGEST_CHARACTERS]
    return f"{slug_of(host, path)}-{digest}"


def _is_local(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified
