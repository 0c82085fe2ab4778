"""What `poise history export` writes becomes blocks by the real promtool, and a real Prometheus answers from them as we do."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import numpy as np
from poise.cli.main import main
from poise.history.promql.engine import Engine, InstantVector
from poise.history.querier.prometheus import PrometheusQuerier
from poise.history.store.read_only import ReadOnlyStore
from poise.history.store.store import Store

from tests.monitoring import free_port, started
from tests.needs import needs
from tests.promql_oracle import BASE, LENGTH, series

END = (BASE + LENGTH) / 1000 + 0.007
QUERIES = (
    "count_over_time(depth[35m])",
    "sum by (job, instance) (count_over_time(odd[35m]))",
    "sum by (le) (max_over_time(latency_bucket[35m]))",
    "max_over_time(requests_total[35m])",
    "last_over_time(ratio[35m])",
)


def test_an_exported_history_is_a_prometheus_block_with_the_same_answers(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    store = Store(path, wall=lambda: BASE / 1000)
    for number, one in enumerate(series()):
        if all(name.isascii() for name, _ in one.labels):
            for at, value in zip(one.times.tolist(), one.values.tolist(), strict=True):
                store.append(str(number), at / 1000, {one.labels: value})
    out = tmp_path / "out.om"
    assert main(["history", "export", "--history", str(path), "--output", str(out)]) == 0
    store.close()
    data = tmp_path / "data"
    command = [needs("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(out), str(data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr

    (tmp_path / "prometheus.yml").write_text("{}\n")
    port = free_port()
    command = [
        needs("prometheus"),
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    kept = ReadOnlyStore(path)
    with started("prometheus", command, f"http://127.0.0.1:{port}", "/-/ready", tmp_path / "prometheus.log") as server:
        remote = PrometheusQuerier(server.url)
        for query in QUERIES:
            ours, theirs = Engine(kept).instant(query, END), asyncio.run(remote.instant(query, END)).data
            assert isinstance(ours, InstantVector)
            assert isinstance(theirs, InstantVector)
            assert len(ours.samples) > 1
            mine, real = ({sample.labels: sample.value for sample in found.samples} for found in (ours, theirs))
            assert mine.keys() == real.keys(), query
            np.testing.assert_array_equal([mine[own] for own in sorted(mine)], [real[own] for own in sorted(real)], query)
    kept.close()
