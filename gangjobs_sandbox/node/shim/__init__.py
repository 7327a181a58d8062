"""The shim: the program between the node and the process of one container.

It runs as `python -I -S <this folder> <spec.json>` and imports only the standard library. It ends with its container
and, unless the spec says otherwise, with the node. It knows nothing of Kubernetes.
"""
