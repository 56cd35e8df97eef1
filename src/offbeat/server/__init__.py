"""The server: one loop, its events, update validation, the client pool and client-rule extensions."""
