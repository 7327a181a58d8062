"""How requests and responses travel: requests, transports, retries, and logs.

A client has one of two transports, which keep the same rules (`transport.Transport`) and differ in what they cost. Only
the chosen one is imported:

* `HttpxTransport` handles a handful of requests, as in the process of one task, which has loaded httpx.
* `AiohttpTransport` takes 100 ms of CPU to load, and reads the events of a busy watch for half of the CPU.
"""
