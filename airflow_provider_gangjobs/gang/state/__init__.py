"""State of a gang, computed from the objects on the API server. Pure: no I/O, and all times are the server's."""
