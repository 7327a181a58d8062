"""One Kubernetes API server: connection, credentials, client, errors, discovery, informer. Knows nothing of gangs."""
