"""The shim: the program between the node and the process of one container.

The shim runs as `python -I -S <this folder> <spec.json>` and imports only the standard library. The shim ends with its
container and, unless the spec says otherwise, with the node. The shim knows nothing of Kubernetes.
"""
