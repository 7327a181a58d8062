"""Gang jobs for Apache Airflow: the pods of a Kubernetes Job run together or not at all."""

__version__ = "0.1.0"
