"""Two machines: network namespaces of this one, which only reach each other over a cable."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

FIRST, CABLE = "10.77.0.1", "veth0"
NETWORK = {"GLOO_SOCKET_IFNAME": CABLE, "TP_SOCKET_IFNAME": CABLE}


@contextmanager
def two_machines() -> Iterator[tuple[str, str]]:
    """Yield the names of two connected network namespaces, 10.77.0.1 and 10.77.0.2. Skip if none can be made."""
    ip = shutil.which("ip")
    names = (f"onnxgen{os.getpid()}a", f"onnxgen{os.getpid()}b")
    if ip is None or subprocess.run([ip, "netns", "add", names[0]], capture_output=True).returncode:
        pytest.skip("making network namespaces needs iproute2 and CAP_NET_ADMIN")
    try:
        cable = ["link", "add", CABLE, "netns", names[0], "type", "veth", "peer", "name", CABLE, "netns", names[1]]
        subprocess.run([ip, "netns", "add", names[1]], check=True)
        subprocess.run([ip, *cable], check=True)
        for number, name in enumerate(names, 1):
            for link in (["addr", "add", f"10.77.0.{number}/24", "dev", CABLE], ["link", "set", CABLE, "up"]):
                subprocess.run([ip, "-n", name, *link], check=True)
            subprocess.run([ip, "-n", name, "link", "set", "lo", "up"], check=True)
        yield names
    finally:
        for name in names:
            subprocess.run([ip, "netns", "del", name], capture_output=True)
