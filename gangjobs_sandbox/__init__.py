"""The gangjobs sandbox: a small Kubernetes in one Python process, for laptops and tests."""

__version__ = "0.1.0"
