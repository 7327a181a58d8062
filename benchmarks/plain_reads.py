"""The twin of the client without batched reads, for comparisons."""

from __future__ import annotations

from functools import partial

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.http.aiohttp_transport import AiohttpTransport
from airflow_provider_gangjobs.cluster.http.stream_reader import read_chunks
from airflow_provider_gangjobs.cluster.informer.factory import InformerFactory


def informers_without_batches() -> InformerFactory:
    """Return informers that read each chunk of a watch as it arrives."""
    return InformerFactory(connect=partial(Client, transport=partial(AiohttpTransport, read_stream=read_chunks)))
