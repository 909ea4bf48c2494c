"""Ports that nobody listens on at the moment."""

import socket


def free_port() -> int:
    """On all addresses: tests listen on more of them than 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
