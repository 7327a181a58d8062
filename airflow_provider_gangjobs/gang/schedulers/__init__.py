"""Gang schedulers: `native` is the Workload API of Kubernetes, and the others run beside the default scheduler.

To add a scheduler, add a class to `external.py`, and an entry in its `SEPARATE_SCHEDULERS`.
"""
