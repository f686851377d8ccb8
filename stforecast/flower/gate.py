"""The gate of a federation's server, which lets what nodes send pass, and nothing else.

Flower 1.40 to 1.42 serves nodes (`/v1/fleet`), the command `flwr` (`/v1/control`) and the processes
of apps (`/v1/runtime`) at one address, and asks only nodes for a key. So the SuperLink listens on
this machine alone, and a gate listens for the nodes. The server tries, as a stranger would, whether
the gate holds.
"""

from __future__ import annotations

import base64
import contextlib
import io
import ipaddress
import re
import ssl
import zipfile
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.base.errors import InputError, Words

if TYPE_CHECKING:
    from starlette.requests import Request

NODES, ALL = re.compile(r"/v1/fleet/[a-z-]+"), re.compile(r"/v1/[a-z-]+/[a-z-]+")
"""Paths that pass, and those that an open gate lets pass."""

SMALL = 2**16
"""Bytes of the largest message of somebody whose key was not accepted yet."""

SIGNED = ("flwr-public-key", "flwr-signature", "flwr-timestamp")
"""Headers of a node's key, of its signature and of the time that is signed."""

NOT_PASSED_ON = {"host", "connection", "content-length", "transfer-encoding"}
"""Headers that belong to one connection."""

APP = """[project]
name = "trial"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "nobody"
[tool.flwr.app.components]
serverapp = "trial:app"
clientapp = "trial:app"
[tool.flwr.app.config]
"""
"""An app without code, which a stranger tries to run."""


def is_signed(headers: Mapping[str, str]) -> bool:
    """Return whether the owner of the key that a request names has signed it."""
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

    key, signature, time = (headers.get(name, "") for name in SIGNED)
    try:
        public = bytes_to_public_key(base64.b64decode(key))
        return verify_signature(public, time.encode(), base64.b64decode(signature))
    except ValueError:
        return False


def make_gate(superlink: str, authority: Path, *, everything: bool = False) -> Any:
    """Return the gate, an ASGI application; it may let everything pass, as the SuperLink would.

    It relies on a server that limits headers and bodies, as `make_server` does.
    """
    import httpx
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    from stforecast.service.port import port_of

    passes = ALL if everything else NODES
    client = httpx.AsyncClient(
        base_url=f"https://{superlink}",
        verify=ssl.create_default_context(cafile=authority),
        limits=httpx.Limits(max_connections=None),
        timeout=None if everything else 60.0,  # Nodes wait for 30 seconds.
        trust_env=False,
    )
    accepted = set[str | None]()  # Keys, by the SuperLink.

    async def pass_on(request: Request) -> Response:
        path, size = request.scope["path"], int(request.headers.get("content-length", 0))
        if not passes.fullmatch(path):
            return Response(status_code=404)
        key = request.headers.get(SIGNED[0])
        if size > SMALL and not (everything or (key in accepted and is_signed(request.headers))):
            # Flower tries again, and heartbeats let the SuperLink accept the key until then.
            return Response(status_code=503, headers={"connection": "close"})
        headers = [(k, v) for k, v in request.headers.items() if k not in NOT_PASSED_ON]
        try:
            body = await request.body()
            asked = client.build_request("POST", path, content=body, headers=headers)
            answer = await client.send(asked, stream=True)
        except (ClientDisconnect, httpx.HTTPError):
            return Response(status_code=502)
        port = port_of(request.scope)
        if answer.status_code < 400:
            accepted.add(key)
            if port:
                port.known = True
        found = StreamingResponse(_parts_of(answer, port), answer.status_code)
        found.raw_headers = [
            (k.lower(), v)
            for k, v in answer.headers.raw
            if k.lower().decode() not in NOT_PASSED_ON - {"content-length"}
        ]
        return found

    return Starlette(routes=[Route("/{path:path}", pass_on, methods=["POST"])])


async def _parts_of(answer: Any, port: Any) -> AsyncIterator[bytes]:
    """Yield the parts of the SuperLink's answer, for the port that asked."""
    import httpx

    try:
        async for part in answer.aiter_raw():
            yield part
    except httpx.HTTPError:
        if port:
            port.cut_off("the SuperLink did not answer to the end")
    finally:  # Also if the one that asked has gone.
        await answer.aclose()


def tried(url: str, *, run: bool = True) -> list[str]:
    """Try what a stranger without a key or certificate can do at an address; return what works.

    With `run`, it also tries to run an app.
    """
    import httpx
    from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest
    from flwr.proto.fab_pb2 import Fab

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as app:
        app.writestr("pyproject.toml", APP)
    trials = {"list runs": ("list-runs", ListRunsRequest())}
    if run:
        trials["run an app"] = ("start-run", StartRunRequest(fab=Fab(content=packed.getvalue())))
    found = []
    with httpx.Client(verify=False, trust_env=False, timeout=30) as client:
        for name, (route, asked) in trials.items():
            try:
                answer = client.post(
                    f"{url}/v1/control/{route}",
                    content=asked.SerializeToString(),
                    headers={"content-type": "application/protobuf"},
                )
            except httpx.ConnectError:
                return []
            except httpx.HTTPError as e:
                raise InputError(
                    f"{url} does not answer ({e!r}), so nobody can tell who may use "
                    "it; try again, or use another port"
                ) from e
            if answer.status_code not in (401, 403, 404, 405):  # All others let somebody in.
                found.append(name)
    return found


def check_closed(superlink: str, doors: Iterable[str]) -> None:
    """Check that strangers can do nothing at the addresses that they may reach."""
    if not tried(superlink, run=False):
        raise InputError(
            f"{superlink}: this version of Flower cannot be tried as a stranger would; install "
            "the one that `pip install 'stforecast[flower]'` takes"
        )
    for door in doors:
        if found := tried(door):
            raise InputError(
                f"{door}: whoever reaches this address can {' and '.join(found)} (tried just "
                "now), which is to run any code on this server; start the server with `stforecast "
                "federate serve`, which lets only nodes in, or ",
                Words("accept it with {unsafe_open}"),
            )


def other_addresses() -> list[str]:
    """Return the addresses of this machine at which others may reach it."""
    import psutil

    found = []
    for each in psutil.net_if_addrs().values():
        for text in (a.address for a in each):
            with contextlib.suppress(ValueError):  # Not of the internet protocol.
                address = ipaddress.ip_address(text)
                if not address.is_loopback and not address.is_link_local:
                    found.append(f"[{text}]" if address.version == 6 else text)
    return found


def check_superlink_of(arguments: list[str]) -> None:
    """Check that strangers cannot use the SuperLink that started this `flwr-serverapp`.

    Nothing is checked if the arguments name no SuperLink, as in Flower's simulation.
    """
    option = "--runtime-api-address"
    if option not in arguments:
        return
    address = arguments[arguments.index(option) + 1]
    scheme = "http" if "--insecure" in arguments else "https"
    port = address.rpartition(":")[2]
    doors = [f"{scheme}://{each}:{port}" for each in other_addresses()]
    check_closed(f"{scheme}://{address}", doors)
