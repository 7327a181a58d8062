"""The sandbox's node: pods as local processes, for the embedded API server and for a real one."""

from __future__ import annotations

from .client import ApiClient
from .config import NodeConfig
from .isolation import Isolation
from .network import PodNetwork
from .node import Node

__all__ = ["ApiClient", "Isolation", "Node", "NodeConfig", "PodNetwork"]
