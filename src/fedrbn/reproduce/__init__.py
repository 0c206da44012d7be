"""Every experiment of the paper by name: declared in TOML, run at one of four scales, compared with printed numbers.

    declaration = declarations.read("benchmark")
    cells = experiment_cells.cells(declaration, SCALES["smoke"], seeds=[1])
    running.complete(cells, Path("runs"), workers=2)
    table.write(table.fill(declaration, cells, Path("runs"), ...), Path("results/benchmark-smoke"))

All runs are in one store under the key of their config, so experiments that need the same run share it.
"""
