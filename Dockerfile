# Two images from one tree: the exporter, which looks at a node, and the dashboard, which only scrapes exporters.
#
#   docker build --target exporter  -t poise-exporter:0.1.0  .
#   docker build --target dashboard -t poise-dashboard:0.1.0 .
#
# No library of NVIDIA's is inside: its container runtime brings libnvidia-ml.so.1 of the node's own driver. How to run them: docs/containers.md; in a cluster, or with Prometheus and all: docs/deploy.md.

FROM python:3.11-slim AS source
WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY exporter/ exporter/
COPY history/ history/
COPY alerts/ alerts/
COPY dashboard/ dashboard/
COPY grafana/ grafana/
COPY testbed/ testbed/
COPY cli/ cli/
RUN python -m venv /opt/poise

FROM source AS build-exporter
RUN /opt/poise/bin/pip install --no-cache-dir --disable-pip-version-check --constraint requirements.lock ".[web-config]"

FROM source AS build-dashboard
RUN /opt/poise/bin/pip install --no-cache-dir --disable-pip-version-check --constraint requirements.lock ".[dashboard]"

FROM python:3.11-slim AS exporter
LABEL org.opencontainers.image.title="poise-exporter" \
      org.opencontainers.image.description="GPUs and vLLM engines of a node as Prometheus metrics" \
      org.opencontainers.image.licenses="Apache-2.0"
# Asks NVIDIA's container runtime for every card and for what reads them (utility), not for CUDA.
ENV PATH=/opt/poise/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility
COPY --from=build-exporter /opt/poise /opt/poise
# Root, because environment, sockets and containers of other users' processes are read; it needs no more than SYS_PTRACE besides Docker's usual rights.
USER root
EXPOSE 9747
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9747/healthz', timeout=4)"]
ENTRYPOINT ["poise"]
CMD ["exporter"]

FROM python:3.11-slim AS dashboard
LABEL org.opencontainers.image.title="poise-dashboard" \
      org.opencontainers.image.description="Page over Poise exporters: which GPUs of a vLLM deployment do their share" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/poise/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    POISE_STATE_DIR=/var/lib/poise
# History, alerts and token: a volume, so that they outlive the container and have a place where its root is read-only. A named volume takes its owner
# from the folder here.
RUN useradd --system --uid 65532 --no-create-home --shell /usr/sbin/nologin poise \
    && install -d -o poise -m 0700 /var/lib/poise
COPY --from=build-dashboard /opt/poise /opt/poise
USER poise
VOLUME /var/lib/poise
EXPOSE 9748
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9748/healthz', timeout=4)"]
ENTRYPOINT ["poise"]
CMD ["up", "--no-exporter", "--listen", "0.0.0.0:9748"]
