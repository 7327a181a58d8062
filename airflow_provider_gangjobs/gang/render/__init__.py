"""From a GangSpec to the Kubernetes objects of a gang."""
