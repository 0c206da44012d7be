"""The paper's figures from our results, as SVG and PNG.

    request = Request(table=Path("results/highlight-cpu/table.json"))
    catalogue.draw(catalogue.find("highlight"), request, Path("figures/highlight"))

Figures of experiments read the JSON that `fedrbn reproduce` writes, figures of networks read run directories. Nothing
is drawn that was not measured here, except the paper's printed numbers, which are marked as such.
"""
