# Planner and status service, without torch. Build it from the repository root:
#   docker build -f deploy/docker/services.Dockerfile -t relibra/services .
#
# The CPU that the solver is compiled for. `generic` runs on every CPU of the architecture; docs/service.md has others.
ARG CPU=generic

FROM python:3.11.11-slim-bookworm AS build
ARG CPU
WORKDIR /src
RUN python -m venv /opt/relibra
# The packages come first, so that an edit of the sources does not install them again.
COPY pyproject.toml constraints.txt deploy/docker/requirements.py ./
RUN python requirements.py planner > requirements.txt \
    && /opt/relibra/bin/pip install --no-cache-dir -c constraints.txt -r requirements.txt
COPY README.md LICENSE ./
COPY docs/runbook.md docs/
COPY proto proto
COPY services services
COPY trainer_agent trainer_agent
COPY kernels kernels
RUN /opt/relibra/bin/pip install --no-cache-dir -c constraints.txt --no-deps '.[planner]'
ENV NUMBA_CPU_NAME=$CPU NUMBA_CPU_FEATURES=
RUN /opt/relibra/bin/python -m relibra.planner.machine_code /opt/relibra/share/relibra/machine-code

FROM python:3.11.11-slim-bookworm
ARG CPU
RUN groupadd --system --gid 10001 relibra && useradd --system --uid 10001 --gid relibra relibra
COPY --from=build /opt/relibra /opt/relibra
# In a read-only container numba can add machine code here; a planner copies that of the image to it.
ENV PATH=/opt/relibra/bin:$PATH NUMBA_CACHE_DIR=/tmp/numba NUMBA_CPU_NAME=$CPU NUMBA_CPU_FEATURES=
# By number, so that Kubernetes can check that it is not root.
USER 10001:10001
ENTRYPOINT ["relibra"]
