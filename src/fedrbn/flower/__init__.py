"""The same federation on Flower, whose messages connect `federate` on the server with `local_update` on the clients.

    server_app   the ServerApp: experiment from the run config, handshake, then the same rounds as an embedded run
    client_app   the ClientApp: one site's data, its own batch norm, jobs done by the same code as in an embedded run

Flower is only the transport. Aggregation, propagation, checkpoints and records are those of `fedrbn run`.
"""
