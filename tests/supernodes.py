"""SuperNodes that nothing starts again, unlike those of `stforecast node`."""

from stforecast.flower.node_settings import NodeSettings
from stforecast.flower.supernode import free_port


def start_supernode(flower, name, data, first_client, key=None):
    """Start a SuperNode at the SuperLink of a `LocalFlower`, with its private key if it has one."""
    authority = flower.keys.authority if flower.keys else None
    settings = NodeSettings(
        flower.address, data, first_client, root_certificates=authority, key=key,
        insecure=not authority,
    )  # fmt: skip
    flower.start(name, *settings.command(free_port()))
