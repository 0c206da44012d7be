"""The same federation on Flower: its messages carry what `federate` and `local_update` say to each other.

    server_app   the ServerApp: experiment from the run config, handshake, then the very rounds of an embedded run
    client_app   the ClientApp: one site's data, its own batch norm, jobs done by the very code of an embedded run

Flower is transport here. Aggregation, propagation, checkpoints and records are those of `fedrbn run`.
"""
