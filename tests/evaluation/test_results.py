"""Results in a notebook: tables with the numbers of the record, frames with a row per client or per run."""

from __future__ import annotations

import json
import sys

import pytest
from rich.table import Table

from fedrbn.errors import EvaluationError
from fedrbn.evaluation.results import Evaluation, MethodComparison, html


def evaluation(seed: int, ra: float) -> Evaluation:
    """Two clients, of which one is right on 3 of 4 clean images and on `ra` of the attacked ones."""
    attack = {"eps": 8 / 255, "settings": "", "in_config": True}
    means = {"sa": 0.75, "ra": ra, "ra adaptive": ra}
    user = {"domain": "pen", "role": "AT", "predicts": "clean", **means}
    return Evaluation(
        method="fatbn", data="digits-mini", attack="pgd-7", threat="pixel", seed=seed, attacks={"pgd-7": attack},
        deployment="clean", part="test", round=3, labels={}, samples_digest="", users={"pen-0": user, "pen-1": user},
        domains={"pen": means}, mean=means, interval={name: [0.0, 1.0] for name in means},
        samples=dict.fromkeys(means, 8), worst_domain=means,
    )  # fmt: skip


def test_an_evaluation_is_json_and_a_table() -> None:
    found = evaluation(1, 0.25)
    assert json.loads(json.dumps(found)) == found
    assert found.record.mean["ra"] == 0.25
    page = found._repr_html_()
    assert "<th>RA</th>" in page
    assert "<tr><td>pen</td><td>75.0</td><td>25.0</td></tr>" in page
    assert "Adaptive" not in page  # a table without this column does not explain it


def test_a_comparison_shows_mean_and_spread_over_seeds() -> None:
    """0.25 and 0.75: mean 0.5, standard deviation √((0.25² + 0.25²) / (2 − 1)) = 0.354."""
    found = MethodComparison({"fatbn": [evaluation(1, 0.25), evaluation(2, 0.75)]})
    assert "<td>50.0 ± 35.4</td>" in found._repr_html_()
    assert "Adaptive: the worst, per sample" in found._repr_html_()
    assert "50.0 ± 35.4" in str(found)
    assert found["fatbn"][1]["seed"] == 2


def test_html_escapes_what_stands_in_a_table() -> None:
    table = Table("a<b", title="<script>")
    table.add_row("x & y")
    page = html(table)
    assert "<script>" not in page
    assert "<th>a&lt;b</th>" in page
    assert "<td>x &amp; y</td>" in page


def test_frames_have_a_row_per_client_and_per_run() -> None:
    pytest.importorskip("pandas")
    clients = evaluation(1, 0.25).to_frame()
    assert list(clients.index) == ["pen-0", "pen-1"]
    assert clients.loc["pen-1", "ra"] == 0.25
    runs = MethodComparison({"fatbn": [evaluation(1, 0.25), evaluation(2, 0.75)]}).to_frame()
    assert runs.loc[("fatbn", 2), "ra"] == 0.75


def test_without_pandas_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(EvaluationError, match="pip install pandas"):
        evaluation(1, 0.25).to_frame()
