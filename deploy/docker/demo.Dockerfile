# The training job of the demo, with CPU torch and megatron-core. Build it from the repository root:
#   docker build -f deploy/docker/demo.Dockerfile -t relibra/demo .
FROM python:3.11.11-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/relibra \
    && /opt/relibra/bin/pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch==2.13.0
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY docs/runbook.md docs/
COPY proto proto
COPY services services
COPY trainer_agent trainer_agent
COPY kernels kernels
RUN /opt/relibra/bin/pip install --no-cache-dir -c constraints.txt '.[all]'

FROM python:3.11.11-slim-bookworm
RUN useradd --system --uid 10001 relibra
COPY --from=build /opt/relibra /opt/relibra
ENV PATH=/opt/relibra/bin:$PATH NUMBA_CACHE_DIR=/tmp/numba HOME=/tmp
USER relibra
ENTRYPOINT ["relibra", "demo"]
