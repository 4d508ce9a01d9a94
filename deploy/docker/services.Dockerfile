# Planner and status service, without torch. Build it from the repository root:
#   docker build -f deploy/docker/services.Dockerfile -t relibra/services .
FROM python:3.11.11-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY docs/runbook.md docs/
COPY proto proto
COPY services services
COPY trainer_agent trainer_agent
COPY kernels kernels
RUN python -m venv /opt/relibra && /opt/relibra/bin/pip install --no-cache-dir -c constraints.txt '.[planner]'

FROM python:3.11.11-slim-bookworm
RUN useradd --system --uid 10001 relibra
COPY --from=build /opt/relibra /opt/relibra
# numba caches compiled planning code here, where a read-only container can write.
ENV PATH=/opt/relibra/bin:$PATH NUMBA_CACHE_DIR=/tmp/numba
USER relibra
ENTRYPOINT ["relibra"]
