"""HTTP with one API server: requests, responses, retries, streams."""
