# The service and its default model; no torch. For one GPU: docker build --build-arg RUNTIME=gpu
# To build from one exact base: --build-arg BASE=python:3.11-slim-bookworm@sha256:...
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
ARG RUNTIME=cpu
ARG EXTRAS=
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY service service
RUN python -m venv --without-pip /opt/heed \
 && pip --python /opt/heed/bin/python install --no-cache-dir -c constraints.txt ".${EXTRAS:+[$EXTRAS]}" \
 && case "$RUNTIME" in cpu|gpu) ;; *) echo "RUNTIME is $RUNTIME: give cpu or gpu" >&2; exit 1;; esac \
 && if [ "$RUNTIME" = gpu ]; then \
      pip --python /opt/heed/bin/python uninstall --yes onnxruntime \
   && pip --python /opt/heed/bin/python install --no-cache-dir -c constraints.txt "onnxruntime-gpu[cuda,cudnn]>=1.31"; \
    fi \
 && find /opt/heed -name redoc.standalone.js -delete  # 1.1 MB of fastapi-offline: /docs is Swagger UI

FROM ${BASE}
LABEL org.opencontainers.image.title="Heed" \
      org.opencontainers.image.description="Serve encoder-decoder Transformers over HTTP and show what they attend to." \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
# For labels in PNG pictures: Unifont has every script, FriBidi writes from right to left. Most of the
# packages' other fonts are variants of these three.
RUN apt-get update && apt-get install -y --no-install-recommends fonts-dejavu-core fonts-unifont libfribidi0 \
 && find /usr/share/fonts -type f ! -name DejaVuSans.ttf ! -name unifont.otf ! -name unifont_upper.otf -delete \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
COPY --from=build /opt/heed /opt/heed
# By number: Kubernetes cannot tell whether a name is root's (runAsNonRoot). Nothing is written, so the
# root file system may be read-only, and nothing needs a shell.
RUN useradd --system --no-create-home --uid 10001 heed
USER 10001
ENV HEED_HOST=0.0.0.0 HEED_PORT=8000 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
  CMD ["/opt/heed/bin/python", "-c", "import os, urllib.request; urllib.request.urlopen(f\"http://127.0.0.1:{os.environ['HEED_PORT']}/readyz\")"]
ENTRYPOINT ["/opt/heed/bin/python", "-m", "service"]
