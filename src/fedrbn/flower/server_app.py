"""The ServerApp: `flwr run` starts it with a run config; see `serving` for what it does."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedrbn.flower.serving import serve

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train and evaluate with the nodes that are connected."""
    serve(grid, context.run_config)
