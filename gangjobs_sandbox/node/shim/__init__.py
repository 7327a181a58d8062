"""The program that stands between the node and one container's process.

It is run as `python -I -S <this folder> <spec.json>`, imports the standard library only, and
outlives neither its container nor, unless told so, the node. It knows nothing of Kubernetes.
"""
