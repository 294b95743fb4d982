"""The metrics in Prometheus' formats. Load it when somebody asks: it loads prometheus-client."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from .metrics import METRICS, Counter, Gauge, Histogram, Metric


class _Collector(Collector):
    def collect(self) -> Iterator[Family]:
        for metric in METRICS.values():
            yield _family(metric)


def _family(metric: Metric) -> Family:
    match metric:
        case Counter():
            counter = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, value in metric.values.items():
                counter.add_metric(labels, value)
            return counter
        case Gauge():
            gauge = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            if metric.read is not None:
                for labels, value in metric.read().items():
                    gauge.add_metric(labels, value)
            return gauge
        case Histogram():
            histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            bounds = [*(str(float(bound)) for bound in metric.buckets), "+Inf"]
            for labels, series in metric.series.items():
                buckets = list(zip(bounds, map(float, accumulate(series.counts)), strict=True))
                histogram.add_metric(labels, buckets=buckets, sum_value=series.sum)
            return histogram


_registry = CollectorRegistry(auto_describe=False)
_registry.register(_Collector())
ProcessCollector(registry=_registry)


def render(accept: str) -> tuple[bytes, str]:
    """All metrics in the best format that the client accepts, and its content type."""
    encode, content_type = choose_encoder(accept)
    return encode(_registry), content_type
