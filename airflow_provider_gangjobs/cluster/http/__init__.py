"""How requests and responses travel: requests, connections, retries, and logs."""
