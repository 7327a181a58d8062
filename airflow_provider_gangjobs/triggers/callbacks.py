"""`GangJobCallback`, the base class of the callbacks of a gang."""

from airflow_provider_gangjobs.parameters.callbacks import GangJobCallback

__all__ = ["GangJobCallback"]
