"""HTTP requests to one API server: transport, retries, streams, and responses."""
