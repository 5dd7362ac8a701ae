# The service and its default model; no torch. For one GPU: docker build --build-arg RUNTIME=gpu
FROM python:3.11-slim-bookworm AS build
ARG RUNTIME=cpu
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY service service
RUN python -m venv --without-pip /opt/heed \
 && pip --python /opt/heed/bin/python install --no-cache-dir -c constraints.txt ".[$RUNTIME]"

FROM python:3.11-slim-bookworm
# For labels in PNG pictures: Unifont has every script, FriBidi writes from right to left.
RUN apt-get update && apt-get install -y --no-install-recommends fonts-dejavu-core fonts-unifont libfribidi0 \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
COPY --from=build /opt/heed /opt/heed
RUN useradd --system --no-create-home heed
USER heed
ENV HEED_HOST=0.0.0.0 HEED_PORT=8000 PYTHONUNBUFFERED=1
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
  CMD ["/opt/heed/bin/python", "-c", "import os, urllib.request; urllib.request.urlopen(f\"http://127.0.0.1:{os.environ['HEED_PORT']}/readyz\")"]
ENTRYPOINT ["/opt/heed/bin/python", "-m", "service"]
