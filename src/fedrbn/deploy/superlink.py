"""Flower's SuperLink with one restriction: other machines reach its Fleet API and nothing else.

SuperLink serves three interfaces on one port. *Fleet* is for nodes and checks their keys. *Control* registers keys and
starts runs, and *Runtime* hands out tasks; in Flower's open edition neither asks who is calling, so whoever reaches the
port could register a key of their own and run any code on the server and on all nodes. Here these two answer callers on
the same machine only: the operator, and the server's own processes.

    python -m fedrbn.deploy.superlink <the options of flower-superlink>
"""

from __future__ import annotations

import ipaddress

import uvicorn
from flwr.supercore.http_logging import get_uvicorn_log_config
from flwr.supercore.logger import console_handler
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
from flwr.superlink.main import create_app
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

PUBLIC = ("/v1/fleet/", "/health")
"""How the paths begin that other machines may ask for."""
REFUSAL = "Only the Fleet API is open to other machines. Run flwr commands on the machine of the SuperLink."


class FleetOnly:
    """Refuses requests from other machines for anything but the Fleet API."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 403."""
        answer = self.app if admitted(scope) else PlainTextResponse(REFUSAL, status_code=403)
        await answer(scope, receive, send)


def admitted(scope: Scope) -> bool:
    """Whether this request may go on: it is local, or it is for the Fleet API."""
    if scope["type"] == "lifespan":  # the server's own start and end
        return True
    client = scope.get("client")
    return is_local(client[0] if client else "") or str(scope["path"]).startswith(PUBLIC)


def is_local(address: str) -> bool:
    """Whether an IP address is this machine's loopback; anything that is not an address is foreign."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def main() -> None:
    """Start the SuperLink and serve until a signal ends it."""
    config = _parse_superlink_lifespan_config()
    app = create_app(config, SuperLinkLifespan)
    app.add_middleware(FleetOnly)
    uvicorn.run(
        app=app,
        host=config.host,
        port=config.port,
        proxy_headers=False,  # an X-Forwarded-For header must not make a stranger look local
        access_log=False,
        log_config=get_uvicorn_log_config(console_handler.level),
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        workers=1,
    )


if __name__ == "__main__":
    main()
