"""Networks of the test: a bridge, with a namespace for each etcd and each gateway."""

import subprocess

BRIDGE = "10.77.0.254"
BRIDGE_6 = "fd77::fe"
# An address without a host: packets to it are visible on the bridge.
LISTENER = "10.77.0.99"
# The bridge's address; otherwise it changes with each port.
MAC = "02:00:00:00:77:01"
GROUP = "239.77.0.1"


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def inside(name, *words):
    """A command in a namespace; the process of `ip` becomes the command."""
    return ["ip", "netns", "exec", name, *words]


def address(name):
    """e1 to e3 belong to etcd, n1 to n3 to the gateways."""
    return f"10.77.0.{ {'e': 10, 'n': 20}[name[0]] + int(name[1:])}"


def build(names):
    ip("link", "set", "lo", "up")
    ip("link", "add", "br0", "address", MAC, "type", "bridge", "mcast_snooping", "0")
    ip("addr", "add", f"{BRIDGE}/24", "dev", "br0")
    ip("addr", "add", f"{BRIDGE_6}/64", "dev", "br0", "nodad")
    ip("link", "set", "br0", "up")
    ip("route", "add", "224.0.0.0/4", "dev", "br0")
    for name in names:
        ip("netns", "add", name)
        ip("link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", f"to-{name}", "master", "br0", "up")
        there = ["-n", name]
        ip(*there, "link", "set", "lo", "up")
        ip(*there, "addr", "add", f"{address(name)}/24", "dev", "eth0")
        ip(*there, "link", "set", "eth0", "up")
        ip(*there, "route", "add", "224.0.0.0/4", "dev", "eth0")
        ip(*there, "neigh", "add", LISTENER, "lladdr", MAC, "dev", "eth0")


def mac(name):
    """Address of a node's device."""
    shown = subprocess.run(["ip", "-n", name, "-o", "link", "show", "dev", "eth0"], capture_output=True, text=True, check=True).stdout.split()
    return shown[shown.index("link/ether") + 1]


def unplug(name):
    ip("link", "set", f"to-{name}", "down")


def plug(name):
    ip("link", "set", f"to-{name}", "up")


def cut(name, other):
    """Drops all packets from `name` to `other`."""
    ip("-n", name, "route", "add", "blackhole", f"{address(other)}/32")


def mend(name, other):
    ip("-n", name, "route", "del", "blackhole", f"{address(other)}/32")
