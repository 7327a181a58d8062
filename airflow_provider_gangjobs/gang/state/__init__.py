"""How far a gang is, by what the server shows of it. Pure: no I/O, and no time but the server's."""
