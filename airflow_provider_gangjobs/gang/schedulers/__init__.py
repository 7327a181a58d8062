"""Gang schedulers: `native` is the Workload API of Kubernetes, and the others run beside the default scheduler.

To add a scheduler, add a file and an entry in `SEPARATE_SCHEDULERS` of `selection.py`.
"""
