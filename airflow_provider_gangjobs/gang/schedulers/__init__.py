"""Gang schedulers: the ways in which a cluster places all pods of a gang, or none of them. There is one file for each.

`native` is the Workload API of Kubernetes. The other modules are schedulers that run beside the default scheduler. To
add a scheduler, add a file and an entry in `SEPARATE_SCHEDULERS` of `selection.py`.
"""
