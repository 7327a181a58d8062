"""The log of credentials: one line when a renewal fails, one when it works again, and never the credentials."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.auth.credentials import RETRY_RENEWAL_S, Access, Credentials, TlsConfig
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.errors import CredentialsFailed

if TYPE_CHECKING:
    import pytest

SECRET = "Bearer sesame-open-the-door"


class Source:
    """Gives a token that is good for a minute, unless it is broken."""

    def __init__(self) -> None:
        self.now = 0.0
        self.is_broken = False

    def load(self) -> Access:
        if self.is_broken:
            raise CredentialsFailed("k8s", "the issuer is away")
        return Access("http://x", SECRET, TlsConfig(), None, None, 60.0)

    def credentials(self) -> Credentials:
        config = ClusterConfig.from_extras("k8s", {"kube_config_path": "/nowhere"})
        return Credentials(config, clock=Clock(monotonic=lambda: self.now), load=self.load)


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, dict[str, Any]]]:
    records: list[Any] = [one for one in caplog.records if hasattr(one, "fields")]
    return [(one.levelname, one.what, one.fields) for one in records]


async def test_failed_renewal_is_logged_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    source = Source()
    credentials = source.credentials()
    await credentials.current()
    source.is_broken = True
    for _ in range(5):
        source.now += RETRY_RENEWAL_S + 1
        await credentials.current()
    source.is_broken = False
    source.now += RETRY_RENEWAL_S + 1
    await credentials.current()
    (_, kept, why), (_, renewed, whose) = logged(caplog)
    assert (kept, renewed) == (
        "credentials could not be renewed, the current ones stay in use",
        "credentials renewed after a failure",
    )
    assert "the issuer is away" in why["cause"]
    assert whose == {"connection": "k8s"}


async def test_renewal_after_a_refusal_is_logged_without_credentials(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    credentials = Source().credentials()
    await credentials.renew(await credentials.current())
    what = "credentials renewed after a 401"
    assert logged(caplog) == [("DEBUG", what, {"connection": "k8s"})]
    assert "sesame" not in caplog.text
